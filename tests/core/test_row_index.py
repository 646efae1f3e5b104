"""Rows by key against a model with a dict, and keys that begin in the same slot."""

from random import Random

import numpy as np
import pytest

from evaluator.core.columns.key_hashes import keys_from
from evaluator.core.columns.table import RowTable
from evaluator.core.join.row_index import KEY_COLUMNS, RowIndex
from tests.repeats import sized


@pytest.mark.parametrize("n_firsts", [1 << 20, 7])
def test_row_index_equals_a_dict(n_firsts):
    """With few first halves, nearly every key begins in the slot of others."""
    random, known = Random(1), {}
    table = RowTable(KEY_COLUMNS)
    index = RowIndex(table)

    def rows_for(keys):
        rows = table.allocate(len(keys))
        table["key"][rows] = keys_from(keys)
        assert index.keys_of(rows) == keys
        return rows

    every = [
        random.randrange(n_firsts).to_bytes(8, "little") + number.to_bytes(8, "little")
        for number in range(900)
    ]
    for _ in range(sized(200, quick=40)):
        new = [key for key in random.sample(every, 40) if key not in known]
        rows = rows_for(new)
        index.add(rows)
        known |= dict(zip(new, rows.tolist(), strict=True))
        again = random.sample(sorted(known), min(len(known), 5))
        rows = rows_for(again)
        index.replace(np.array([known[key] for key in again], np.int64), rows)
        known |= dict(zip(again, rows.tolist(), strict=True))
        gone = random.sample(sorted(known), min(len(known), random.randrange(60)))
        index.remove(np.array([known.pop(key) for key in gone], np.int64))
        asked = random.sample(every, 100)
        assert index.find(keys_from(asked)).tolist() == [known.get(key, -1) for key in asked]
        assert len(index) == len(known)
    assert len(index._slots) <= 4_096
