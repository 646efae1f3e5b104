"""The compiled reader of settled queries against the reference path."""

import random

import numpy as np
import pytest

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.measures import MeasureSet
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.native import library
from evaluator.wire.outputs.encoding import encode_watermark
from evaluator.wire.outputs.settled import WatchedReader, decode_settled
from tests.wire import mutations

COLUMNS = [("served", "top1"), ("bm25", "top1"), ("served", "mrr"), ("absent", "mrr")]
WATCHED = {"top1": "top1", "hit@1": "top1", "mrr": "mrr"}
QUERY = (
    '{"n":7,"task":3,"trace_id":"t-ä","node_id":"a\\u0041\\n","event_time_ms":5,'
    '"settled_time_ms":8,"offset":1,"model":"m","variant":"v","segments":{"locale":"de"},'
    '"grades":{"a":1,"b":0.5},"values":{"served":{"top1":1.0,"hit@1":0.1,"ndcg@10":0.0,'
    '"mrr":0.3333333333330302},"bm25":{"top1":0.25},"other":{"top1":0.5}},"logged":{"a":[3,0.5]}}'
).encode()
VALUES = [
    QUERY,
    QUERY.replace(b'"grades"', b'"silent":true,"grades"').replace(b"t-\xc3\xa4", b""),
    QUERY.replace(b',"segments":{"locale":"de"}', b""),
    b'{"n":8,"task":3,"settled_time_ms":%d,"grades":{},"values":{}}' % (2**63 - 1),
    encode_watermark(WatermarkRecord(9, 8), task=3).value,
    b'{"n":9,"task":3,"settled_time_ms":0,"watermark_ms":null,"silent":false}',
]


def as_list(column):
    """The entries of a column of any kind."""
    if isinstance(column, DictionaryColumn):
        return column.values()
    return list(column) if isinstance(column, ByteStrings) else column.tolist()


def listed(found):
    """Parts with columns as lists, unchanged watermark records, and refusals."""
    parts, refused = found
    columns = [
        [as_list(column) for column in part] if isinstance(part, WatchedQueries) else part
        for part in parts
    ]
    return columns, [(offset, str(error)) for offset, error in refused]


def both_ways(reader, values, task=3):
    """The read records, equal to the reference path's, and whether the compiled part read them."""
    arguments = ByteStrings.of(values), np.arange(len(values)), task
    found = listed(reader(*arguments))
    is_compiled = reader._compiled(*arguments[:2]) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "BUILT", None)
        assert listed(reader(*arguments)) == found
    return found, is_compiled


def test_records_of_workers_are_read_by_the_compiled_part():
    reader = WatchedReader(WATCHED, COLUMNS)
    (parts, refused), is_compiled = both_ways(reader, VALUES)
    assert is_compiled
    assert refused == []
    units, has_value = parts[0][-2:]
    assert units[0] == [round(0.1 * 2**40), 2**38, round(0.3333333333330302 * 2**40), 0]
    assert has_value[0] == [True, True, True, False]
    assert parts[1] == (4, WatermarkRecord(9, 8))


@pytest.mark.parametrize(
    "odd",
    [
        QUERY.replace(b'"mrr"', b'"top1"', 1),  # the same value twice
        QUERY.replace(b'"bm25"', b'"served"'),
        QUERY.replace(b'"b"', b'"b\\""'),
        QUERY.replace(b'"n":7', b'"n":7,"n":8'),
        QUERY.replace(b'"n":7', b'"n":7.0'),
        QUERY.replace(b"0.25", b"1e7"),
        QUERY.replace(b"0.5}", b"31.5}"),
        QUERY.replace(b'"de"', b"null"),
        QUERY.replace(b'"m"', b"1"),
        QUERY.replace(b'"task":3', b'"task":4'),
        QUERY.replace(b"t-\xc3\xa4", b"\xff"),
        QUERY.replace(b'"logged"', b'"x":%s,"logged"' % (b"[" * 64 + b"]" * 64)),
        b'{"n":1,"task":3,"settled_time_ms":-1}',
        b"",
        None,
    ],
)
def test_records_outside_the_compiled_part_are_handled_like_the_reference_path(odd):
    reader = WatchedReader(WATCHED, COLUMNS)
    (parts, _), is_compiled = both_ways(reader, [QUERY, odd, VALUES[4]])
    assert parts[0][1][0] == 7
    assert not is_compiled or odd.count(b'"task":4')


def test_values_that_are_not_watched_are_not_checked():
    """Of a measure that is watched of another ranker."""
    reader = WatchedReader(WATCHED, [("served", "top1"), ("bm25", "mrr")])
    for value in (b"null", b'"1"', b"1e7", b"{}"):
        odd = QUERY.replace(b'"served":{', b'"served":{"mrr":%s,' % value, 1)
        (parts, refused), is_compiled = both_ways(reader, [odd])
        assert is_compiled
        assert (len(parts), refused) == (1, [])


def test_more_columns_than_mask_bits_are_read_by_the_reference_path():
    columns = [(f"r{n}", "top1") for n in range(33)]  # each with two spellings
    both, is_compiled = both_ways(WatchedReader(WATCHED, columns), VALUES)
    assert not is_compiled
    assert both[1] == []
    assert both_ways(WatchedReader(WATCHED, columns[:32]), VALUES)[1]


def test_the_statistical_unit_of_a_trace_equals_that_of_the_whole_query():
    (queries, *_), _ = WatchedReader(WATCHED, COLUMNS)(ByteStrings.of([QUERY]), np.arange(1), 3)
    whole = decode_settled(QUERY, MeasureSet.parse(["top1", "mrr"]), task=3, offset=0)
    of_whole = WatchedQueries.of_settled([whole], COLUMNS)
    assert queries.trace_units.tolist() == of_whole.trace_units.tolist()
    assert queries.trace_ids[0].decode() == whole.trace_id
    assert queries.labels.values() == of_whole.labels.values()


@pytest.mark.slow
def test_mutants_are_read_alike_by_both_paths():
    rng, reader = random.Random(20261123), WatchedReader(WATCHED, COLUMNS)
    n_compiled = n_refused = 0
    for _ in range(4_000):
        values = [mutations.mutant(rng.choice(VALUES), rng), *rng.choices(VALUES, k=2)]
        (_, refused), is_compiled = both_ways(reader, values)
        n_compiled += is_compiled
        n_refused += bool(refused)
    assert n_compiled > 300
    assert n_refused > 500
