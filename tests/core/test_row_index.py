"""Rows by key: a model with a dict, and keys with equal hashes."""

from random import Random

import numpy as np
import pytest

from evaluator.core.columns.table import RowTable
from evaluator.core.join import row_index
from evaluator.core.join.row_index import KEY_COLUMNS, RowIndex


@pytest.mark.parametrize("few_hashes", [False, True])
def test_it_does_what_a_dict_does(few_hashes, monkeypatch):
    """With few hashes, nearly every key shares its hash with others."""
    if few_hashes:
        monkeypatch.setattr(
            row_index, "hashes_of", lambda keys: np.array([hash(key) % 7 - 3 for key in keys])
        )
    random, known = Random(1), {}
    table = RowTable(KEY_COLUMNS)
    index = RowIndex(table)

    def rows_for(keys):
        rows = table.allocate(len(keys))
        index.set_keys(rows, keys)
        assert index.keys_of(rows) == keys
        return rows

    every = [(f"t{number % 300}", f"n{number // 300}") for number in range(900)]
    for _ in range(200):
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
        assert index.find(asked).tolist() == [known.get(key, -1) for key in asked]
        assert len(index) == len(known)
    assert len(index._slots) <= 4_096
