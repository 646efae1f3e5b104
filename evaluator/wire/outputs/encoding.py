"""Columns -> bytes: every record and row that leaves the evaluator.

A batch is encoded in columns (`columns.py`), so that no step of Python is per record. The
fixed texts between the columns (member names, model, variant, names of rankers and measures) are
made once per stratum.

Numbers: units of 2^-40 become the shortest text that reads back to the same double; a whole
grade is printed as an integer.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final

import msgspec

from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import (
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    Log,
    SettledColumns,
    Stratum,
    Tally,
)
from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs.columns import (
    Column,
    Grades,
    Integers,
    Ranks,
    Ready,
    Source,
    Strings,
    Tops,
    rows_of,
)
from evaluator.wire.outputs.offered import offered_members
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT, bounded, shorter_key
from evaluator.wire.outputs.texts import tuples, values_under
from evaluator.wire.records import OutputRecord

TOTALS_FORMAT: Final = 2

LEDGER_MEMBERS: Final[Mapping[Log, tuple[str, ...]]] = {
    "rankings": (
        *("read", "malformed", "heartbeat", "duplicate", "conflicting"),
        *("left_out", "open", "expired"),
    ),
    "judgments": (
        *("read", "malformed", "heartbeat", "duplicate", "conflicting"),
        *("late", "orphan", "over_limit", "left_out", "early", "applied"),
    ),
}
QUERY_MEMBERS: Final = (
    *("started", "with_value"),
    *("settled", "settled_judged", "settled_silent", "settled_unjudged"),
)
DEAD_LETTER_REASONS: Final = (
    *("oversize", "decode", "schema", "version", "limit", "non_finite", "future"),
    *("late", "orphan", "conflicting", "over_limit"),
    OVERSIZE_OUTPUT,
)

_encode = msgspec.json.Encoder().encode


def _per_ranker(before: bytes, rankers: Sequence[str], source: Source) -> list[Column]:
    """An open object of one member per ranker, from items `[n_rows * n_rankers]`."""
    opening = [before + b"{", *repeat(b",", len(rankers) - 1)]
    return [
        (start + _encode(ranker) + b":", source)
        for start, ranker in zip(opening, rankers, strict=True)
    ]


def _values(
    before: bytes, rankers: Sequence[str], measures: MeasureSet, units: Sequence[int]
) -> list[Column]:
    """An open object of one object of values per ranker, from flat units."""
    asked = tuple(measures.column_of(spelling) for spelling in measures.spellings)
    texts = values_under(measures.spellings, asked)
    return _per_ranker(before, rankers, Ready(texts.of(tuples(units, len(measures.canonical)))))


def _records(
    alike: EvaluationColumns | SettledColumns, columns: Sequence[Column], end: bytes
) -> list[OutputRecord]:
    n_rows = len(alike)
    trace_ids, node_ids = Strings(alike.trace_ids), Strings(alike.node_ids)
    keys = rows_of([(b"[", trace_ids), (b",", node_ids)], b"]", n_rows=n_rows)
    rows = zip(keys, rows_of(columns, end, n_rows=n_rows), repeat(()), strict=False)
    # tuple.__new__ itself: half the time of OutputRecord(key, value)
    return list(map(tuple.__new__, repeat(OutputRecord), rows))


def _model_and_variant(stratum: Stratum) -> bytes:
    return b',"model":' + _encode(stratum.model) + b',"variant":' + _encode(stratum.variant)


# --- evaluations and settled -----------------------------------------------------------------


def encode_evaluations(
    evaluations: Iterable[EvaluationColumns], measures: MeasureSet, *, emit_query: bool
) -> list[OutputRecord]:
    """One record per query: key `["trace_id","node_id"]`, value a row of evaluations.ndjson.

    A query without a value has `"rank"` null for every ranker and empty `"values"`. With
    *emit_query* off the member `query` is left out. Ids and numbers must be plain Python
    objects and each row's grades a `dict`.
    """
    records: list[OutputRecord] = []
    for alike in evaluations:
        records += _evaluations_alike(alike, measures, emit_query=emit_query)
    return bounded(records)


def _evaluations_alike(
    alike: EvaluationColumns, measures: MeasureSet, *, emit_query: bool
) -> list[OutputRecord]:
    rankers = alike.stratum.rankers
    named = _model_and_variant(alike.stratum)
    columns: list[Column] = [
        (b'{"trace_id":', Strings(alike.trace_ids)),
        (b',"node_id":', Strings(alike.node_ids)),
        (b',"event_time_ms":', Integers(alike.event_times_ms)),
    ]
    if emit_query:
        columns.append((named + b',"query":', Strings(alike.queries)))
        named = b""
    columns.append((named + b',"revision":', Integers(alike.revisions)))
    columns.append((b',"grades":', Grades(alike.grades)))
    ranks = alike.first_ranks if alike.units is not None else [0] * (len(rankers) * len(alike))
    columns += _per_ranker(b',"rank":', rankers, Ranks(ranks))
    tops = Tops(alike.top_ids, alike.top_scores, alike.n_top, len(rankers) * len(alike))
    columns += _per_ranker(b'},"top3":', rankers, tops)
    if alike.units is None:
        return _records(alike, columns, b'},"values":{}}')
    columns += _values(b'},"values":', rankers, measures, alike.units)
    return _records(alike, columns, b"}}")


def encode_settled(
    settled: Iterable[SettledColumns], measures: MeasureSet, *, task: int, maturity_ms: int
) -> list[OutputRecord]:
    """One record per query, in the order of n: key as of evaluations, value a settled row."""
    numbered: list[tuple[int, OutputRecord]] = []
    for alike in settled:
        records = _settled_alike(alike, measures, task=task, maturity_ms=maturity_ms)
        numbered += zip(alike.ns, records, strict=True)
    numbered.sort(key=itemgetter(0))
    return bounded([record for _, record in numbered])


def _settled_alike(
    alike: SettledColumns, measures: MeasureSet, *, task: int, maturity_ms: int
) -> list[OutputRecord]:
    settled_times_ms = [event_ms + maturity_ms for event_ms in alike.event_times_ms]
    columns: list[Column] = [
        (b'{"n":', Integers(alike.ns)),
        (b',"task":%d,"trace_id":' % task, Strings(alike.trace_ids)),
        (b',"node_id":', Strings(alike.node_ids)),
        (b',"event_time_ms":', Integers(alike.event_times_ms)),
        (b',"settled_time_ms":', Integers(settled_times_ms)),
        (b',"offset":', Integers(alike.offsets)),
        (_model_and_variant(alike.stratum) + b',"grades":', Grades(alike.grades)),
    ]
    end = b',"values":{}'
    if alike.units is not None:
        columns += _values(b',"values":', alike.stratum.rankers, measures, alike.units)
        end = b"}"
    if alike.offered is None:
        return _records(alike, columns, end + b"}")
    columns.append((end, Ready(offered_members(alike.offered))))
    return _records(alike, columns, b"}")


# --- windows and dead letters ----------------------------------------------------------------


def spell_windows(windows: Iterable[FinalWindow], measures: MeasureSet) -> list[FinalWindow]:
    """Each window once per spelling that was asked for its measure, under that spelling."""
    asked: dict[str, list[str]] = {}
    for spelling in measures.spellings:
        asked.setdefault(measures.canonical[measures.column_of(spelling)], []).append(spelling)
    return [
        window._replace(measure=spelling)
        for window in windows
        for spelling in asked[window.measure]
    ]


def window_row(window: FinalWindow, *, window_ms: int) -> dict[str, str | int]:
    """The members of a row of windows.ndjson."""
    return {
        "start_ms": window.start_ms,
        "end_ms": window.start_ms + window_ms,
        "model": window.model,
        "variant": window.variant,
        "ranker": window.ranker,
        "measure": window.measure,
        "queries": window.queries,
        "sum_units": window.sum_units,
    }


def encode_windows(
    windows: Iterable[FinalWindow], measures: MeasureSet, *, window_ms: int, task: int
) -> list[OutputRecord]:
    """One record per final window and spelling of its measure.

    The key is `[task, model, variant, ranker, measure, start_ms]`; the value is a row of
    windows.ndjson with `"final": true`.
    """
    return [
        OutputRecord(
            _encode((task, *window[1:5], window.start_ms)),
            encode_document({**window_row(window, window_ms=window_ms), "final": True}),
        )
        for window in spell_windows(windows, measures)
    ]


def encode_dead_letters(
    letters: Iterable[DeadLetter], topic_names: Mapping[Log, str], *, partition: int
) -> list[OutputRecord]:
    """The original key and value; headers say topic, partition, offset, reason and detail.

    Of a value that was cut `truncated` says how many bytes it had.
    """
    records = []
    for letter in letters:
        headers = (
            ("topic", topic_names[letter.log].encode()),
            ("partition", str(partition).encode()),
            ("offset", str(letter.offset).encode()),
            ("reason", letter.reason.encode()),
            ("detail", letter.detail.encode("utf-8", "backslashreplace")),
            *([] if letter.cut_from is None else [("truncated", b"%d" % letter.cut_from)]),
        )
        key, told = shorter_key(letter.key, headers)
        records.append(OutputRecord(key, letter.value, told))
    return records


def dead_letter_row(
    letter: DeadLetter, topic_name: str, *, partition: int
) -> dict[str, str | int | None]:
    """The members of a row of dead-letters.ndjson; key and value in base64, no key is null."""
    return {
        "topic": topic_name,
        "partition": partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "detail": letter.detail.encode("utf-8", "backslashreplace").decode(),
        "key": None if letter.key is None else b64encode(letter.key).decode(),
        "value": b64encode(letter.value).decode(),
        **({} if letter.cut_from is None else {"truncated": letter.cut_from}),
    }


# --- totals ----------------------------------------------------------------------------------


def totals_document(tally: Tally, measures: MeasureSet) -> dict[str, object]:
    """The shape of totals.json, rows ordered by kind, model, variant, ranker and asked measure."""
    return {
        "format": TOTALS_FORMAT,
        "ledger": {
            log: {member: tally.get((log, member), 0) for member in members}
            for log, members in LEDGER_MEMBERS.items()
        },
        "dead_letters": {
            reason: tally.get(("dead_letters", reason), 0) for reason in DEAD_LETTER_REASONS
        },
        "queries": {member: tally.get(("queries", member), 0) for member in QUERY_MEMBERS},
        "extra": {path[1]: tally[path] for path in sorted(tally) if path[0] == "extra"},
        "totals": _totals_rows(tally, measures),
    }


def _totals_rows(tally: Tally, measures: MeasureSet) -> list[dict[str, object]]:
    rankers = {path[:4] for path in tally if path[0] in {"running", "settled"}}
    rows: list[dict[str, object]] = []
    for kind, model, variant, ranker in sorted(rankers):
        for spelling in measures.spellings:
            canonical = measures.canonical[measures.column_of(spelling)]
            path = (kind, model, variant, ranker, canonical)
            queries = tally.get((*path, "queries"), 0)
            sum_units = tally.get((*path, "sum_units"), 0)
            rows.append(
                {
                    "kind": kind,
                    "model": model,
                    "variant": variant,
                    "ranker": ranker,
                    "measure": spelling,
                    "queries": queries,
                    "sum_units": sum_units,
                    "mean": mean_of(sum_units, queries),
                }
            )
    return rows


def mean_of(sum_units: int, queries: int) -> float | None:
    """The double nearest to the exact mean; None without queries.

    >>> mean_of(3 << 39, 2)
    0.75
    """
    return sum_units / (queries << 40) if queries else None
