"""Output records as rows of one text: the compiled and the reference path write equal bytes."""

import random
import struct
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.texts import TextRows
from evaluator.core.measures import MISSING, UNITS_PER_ONE, MeasureSet
from evaluator.core.types.records import EvaluationColumns, SettledColumns, Stratum
from evaluator.wire.outputs import rows
from evaluator.wire.outputs.encoding import encode_evaluations, encode_settled
from evaluator.wire.outputs.rows import (
    Members,
    Names,
    Numbers,
    OutputRows,
    Part,
    TextPool,
    Texts,
    joined,
    rows_of,
)
from evaluator.wire.records import OutputRecord
from tests.repeats import sized
from tests.wire.sanitized import built, printed

HARNESS = Path(__file__).with_name("rows_harness.c")
MEASURES = MeasureSet.parse(["top1", "mrr", "ndcg@10", "alpha_ndcg@5"])
SEED = 20251122
TEXTS, NUMBERS, RANKS, NAMES = range(4)
STRANGE = [
    "",
    "a",
    'quote " and \\',
    "line\nbreak\r\t",
    "\x00\x1f\x7f",
    "é",
    "\u2028",
    "😀",
    ",",
    ".0,",
]
SCORES = [None, 0.0, -0.0, 1.0, 0.1, -1e300, 5e-324, 1e16, 123456789.125]


def string(rng):
    return "".join(rng.choices(STRANGE, k=rng.choice([0, 1, 2, 5]))) + rng.choice(["", "x" * 200])


def integers(rng, n):
    most = rng.choice([9, 2**31, 2**63 - 1])
    return np.array([rng.randint(-most, most) for _ in range(n)], np.int64)


def grades(rng, n):
    found = [
        {string(rng): rng.choice([None, 0.0, 1.0, 2.5, 31.0]) for _ in range(rng.randrange(4))}
        for _ in range(n)
    ]
    return GradeColumns.of(found)


def units(rng, n):
    found = [MISSING, 0, UNITS_PER_ONE, rng.randrange(UNITS_PER_ONE)]
    return np.array(rng.choices(found, k=n), np.int64)


def strata(rng, n):
    rankers = ("served", "bm25", 'a "b"\n')[: rng.randint(1, 3)]
    names = [Stratum(string(rng), string(rng), rankers) for _ in range(2)]
    return DictionaryColumn.of(rng.choices(names, k=n))


def some_evaluations(rng):
    n, n_top = rng.randint(1, 5), rng.randrange(4)
    labels = strata(rng, n)
    n_lists = n * len(labels.names[0].rankers)
    valued = rng.random() < 0.8
    return EvaluationColumns(
        strata=labels,
        n_top=n_top,
        texts=TextRows.of([[string(rng) for _ in range(3)] for _ in range(n)]),
        event_times_ms=integers(rng, n),
        revisions=integers(rng, n),
        grades=grades(rng, n),
        first_ranks=np.array(rng.choices([0, 1, 7, 1_001, 10**9], k=n_lists), np.int64),
        top_ids=DictionaryColumn.of([string(rng) for _ in range(n_lists * n_top)]),
        top_scores=np.array(rng.choices(SCORES, k=n_lists * n_top), np.float64),
        units=units(rng, n_lists * len(MEASURES.canonical)) if valued else None,
    )


def some_settled(rng, ns):
    n, labels = len(ns), strata(rng, len(ns))
    n_units = n * len(labels.names[0].rankers) * len(MEASURES.canonical)
    return SettledColumns(
        strata=labels,
        ns=np.array(ns, np.int64),
        texts=TextRows.of([[string(rng) for _ in range(3)] for _ in range(n)]),
        event_times_ms=integers(rng, n),
        offsets=integers(rng, n),
        grades=grades(rng, n),
        units=units(rng, n_units) if rng.random() < 0.8 else None,
    )


def both(monkeypatch, make):
    """The results of the compiled part and of the reference path."""
    assert rows.BUILT is not None
    found = [make()]
    with monkeypatch.context() as patch:
        patch.setattr(rows, "BUILT", None)
        found.append(make())
    return found


def test_compiled_and_reference_path_write_the_same_bytes(monkeypatch):
    rng = random.Random(SEED)
    for _ in range(sized(500, quick=50)):
        check_both(
            monkeypatch,
            [some_evaluations(rng) for _ in range(rng.randrange(4))],
            some_settled_parts(rng),
            emit_query=rng.random() < 0.5,
        )


def some_settled_parts(rng):
    ns = list(range(rng.randrange(12)))
    rng.shuffle(ns)
    return [some_settled(rng, ns[first : first + 5]) for first in range(0, len(ns), 5)]


def check_both(monkeypatch, evaluations, settled, *, emit_query):
    one, other = both(
        monkeypatch, lambda: encode_evaluations(evaluations, MEASURES, emit_query=emit_query)
    )
    assert list(one) == list(other)
    assert len(one) == sum(map(len, evaluations))
    one, other = both(
        monkeypatch, lambda: encode_settled(settled, MEASURES, task=3, maturity_ms=2**70)
    )
    assert list(one) == list(other)


def test_a_row_has_each_fixed_text_and_the_next_text_of_its_source(monkeypatch):
    keys, shared = Texts.of([b"1", b"2"]), Texts(b"3,4,5,6,", b",")
    pool = TextPool()
    pool.add(b'"a"\n"b"\n')
    names = Names(np.array([1, 0], np.int32), pool)
    members = Members(np.array([2, 0]), names, Numbers(np.array([-7, 2**63 - 1])))
    pairs = Members(np.array([0, 2]), names, Numbers(np.array([0, 10]), ranks=True), pairs=True)
    columns = [(b"k", keys), (b".", None)]
    columns += [(b"<", shared), (b"-", shared), (b"=", members), (b"/", pairs), (b">", None)]
    again = [(b"k", Texts.of([b"3"])), (b"", None), (b"", Numbers(np.array([4]))), (b"", None)]
    for found in both(monkeypatch, lambda: rows_of([Part(columns, 2), Part(again, 1)])):
        assert list(found) == [
            OutputRecord(b"k1.", b'<3-4={"b":-7,"a":9223372036854775807}/[]>'),
            OutputRecord(b"k2.", b'<5-6={}/[["b",null],["a",10]]>'),
            OutputRecord(b"k3", b"4"),
        ]


@pytest.mark.parametrize(
    "source",
    [
        Texts.of([b"1"]),
        Texts.of([b"1"] * 3),
        Texts(b"1\n2"),
        Numbers(np.array([1])),
        Numbers(np.array([1, 2, 3])),
        Members(np.array([1]), Texts.of([b"1"]), Texts.of([b"1"])),
        Members(np.array([1, 1]), Texts.of([b"1"]), Texts.of([b"1"] * 2)),
        Members(np.array([1, 1]), Texts.of([b"1"] * 2), Numbers(np.array([1]))),
        Members(np.array([1, 1]), Texts.of([b"1"] * 3), Texts.of([b"1"] * 3)),
    ],
)
def test_a_source_of_another_length_is_refused(monkeypatch, source):
    def refused():
        columns = [(b"", Texts.of([b"1"] * 2)), (b"", None), (b"", source), (b"", None)]
        with pytest.raises(ValueError, match=r"rows|argument"):
            rows_of([Part(columns, 2)])

    both(monkeypatch, refused)


RECORDS = [
    OutputRecord(b"k", b"value"),
    OutputRecord(None, b""),
    OutputRecord(b"", b"x" * 300),
    OutputRecord(b"last", b"\x00\xff"),
]


def test_rows_are_read_sliced_picked_and_joined_like_a_list():
    found = OutputRows.of(RECORDS)
    assert found == RECORDS
    assert (len(found), found[1], found[-1]) == (4, RECORDS[1], RECORDS[3])
    assert found[1:3] == RECORDS[1:3]
    assert found[2:][1:] == RECORDS[3:]
    assert found[np.array([3, 1])] == [RECORDS[3], RECORDS[1]]
    assert joined([found[2:], OutputRows.of([]), found[:2]]) == RECORDS[2:] + RECORDS[:2]
    assert found.n_bytes().tolist() == [6, 0, 300, 6]
    headers = (("generation", b"7"),)
    assert OutputRows(found.text, found.spans, headers) == [
        record._replace(headers=headers) for record in RECORDS
    ]


# --- memory ----------------------------------------------------------------------------------


def items(rng, n):
    """A source of *n* items: its kind, terminator, items, pool and ends, and its most bytes."""
    kind = rng.choice([TEXTS, NUMBERS, RANKS, NAMES])
    names = [rng.randbytes(rng.randrange(20)) + b"." for _ in range(rng.randint(1, 3))]
    ends = [0, *accumulate(map(len, names))]
    terminator = rng.choice(b",\n")
    if kind == TEXTS:
        texts = (bytes(rng.choices(b"abc", k=rng.choice([0, 3, 8, 9, 16, 17]))) for _ in range(n))
        found = b"".join(text + bytes([terminator]) for text in texts)
    elif kind == NAMES:
        most = len(names) - (rng.random() < 0.95)
        found = struct.pack(
            f"<{n}i", *(rng.randint(-(rng.random() < 0.02), most) for _ in range(n))
        )
    else:
        numbers = (rng.choice([0, 7, -1, 2**63 - 1, -(2**63)]) for _ in range(n))
        found = struct.pack(f"<{n}q", *numbers)
    n_bytes = {TEXTS: len(found), NAMES: n * max(map(len, names))}.get(kind, 20 * n)
    found = found[:-1] if rng.random() < 0.05 else found
    pool = b"".join(names)
    parts = [kind, terminator, len(found), found, len(pool), pool, len(names), *ends]
    return parts, n_bytes


def case(rng):
    """One call of the compiled part, often with a source that does not fit."""
    n_rows, columns, sources = rng.randrange(5), [], []
    n_sources = n_bytes = 0
    for _ in range(rng.randint(1, 4)):
        columns.append((rng.randbytes(rng.choice([0, 1, 7, 8, 16, 17])), n_sources))
        counts = [rng.randrange(3) for _ in range(n_rows)] if rng.random() < 0.4 else None
        n_items = (n_rows if counts is None else sum(counts)) + rng.choice([0] * 9 + [1, -1])
        for place in range(1 if counts is None else 2):
            parts, most = items(rng, max(0, n_items))
            counted = [0] if counts is None or place else [1, *counts]
            sources += [*parts, *counted, rng.randrange(2)]
            n_sources, n_bytes = n_sources + 1, n_bytes + most
        n_bytes += 0 if counts is None else 2 * n_rows + 4 * sum(counts)
    columns = [columns[0], (b"]", -1), *columns[1:], (b"}", -1)]
    n_bytes += n_rows * sum(len(fixed) for fixed, _ in columns)
    parts = [n_rows, len(columns)]
    for fixed, source in columns:
        parts += [len(fixed), fixed, source]
    parts += [n_sources, *sources, n_bytes]
    return b"".join(part if isinstance(part, bytes) else struct.pack("<q", part) for part in parts)


@pytest.mark.slow
def test_no_columns_cause_an_invalid_memory_access(tmp_path):
    rng = random.Random(SEED)
    sent = b"".join(case(rng) for _ in range(8_000))
    assert int(printed(built(HARNESS, tmp_path), sent)) > 1_000
