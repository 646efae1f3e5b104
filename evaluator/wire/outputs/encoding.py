"""Columns to bytes: `evaluations`, `settled`, `windows`, dead letters, totals.

Values are printed as the shortest number that reads back to the same double, whole grades as
integers. Fixed texts between columns (member names, rankers) are encoded once per list of rankers.
"""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import asdict

from evaluator.core.measures import MeasureSet
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import (
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    IntArray,
    Log,
    LoggedQuery,
    OfferedColumns,
    SettledColumns,
    WatermarkRecord,
)
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.tally import Tally
from evaluator.wire.canonical import encode_document
from evaluator.wire.messages.limits import MAX_FEATURES, MAX_NAME_BYTES
from evaluator.wire.outputs import texts
from evaluator.wire.outputs.rows import Column, Names, OutputRows, Part, Source, Texts, rows_of
from evaluator.wire.outputs.sizes import MAX_OFFERED_BYTES, OVERSIZE_OUTPUT, bounded, shorter_key
from evaluator.wire.records import OutputRecord

TOTALS_FORMAT: Final = 2
MAX_NAMES_BYTES: Final = MAX_FEATURES * (MAX_NAME_BYTES + 4)
"""Limit of the names of features in JSON; only escapes need more. Weights and state copy them."""

_COMMON: Final = ("read", "malformed", "heartbeat", "duplicate", "conflicting")
LEDGER_MEMBERS: Final[Mapping[Log, tuple[str, ...]]] = {
    "rankings": (*_COMMON, "left_out", "open", "expired"),
    "judgments": (*_COMMON, "late", "orphan", "over_limit", "left_out", "early", "applied"),
}
QUERY_MEMBERS: Final = (
    *("started", "with_value"),
    *("settled", "settled_judged", "settled_silent", "settled_unjudged"),
)
DEAD_LETTER_REASONS: Final = (
    *("oversize", "decode", "schema", "version", "limit", "non_finite", "future", "mapping"),
    "registry",
    *("late", "orphan", "conflicting", "over_limit"),
    OVERSIZE_OUTPUT,
)

_encode = msgspec.json.Encoder().encode


# --- evaluations and settled -----------------------------------------------------------------


def encode_evaluations(
    evaluations: Iterable[EvaluationColumns], measures: MeasureSet, *, emit_query: bool
) -> OutputRows:
    """One record per query: key `["trace_id","node_id"]`, value a row of evaluations.ndjson.

    A query without a value has `"rank"` null for every ranker and empty `"values"`. With
    *emit_query* off the member `query` is left out.
    """
    parts = [_evaluations_of_rankers(part, measures, emit_query) for part in evaluations]
    return bounded(rows_of(parts))


def _evaluations_of_rankers(
    rows: EvaluationColumns, measures: MeasureSet, emit_query: bool
) -> Part:
    rankers, quote = rows.rankers, b""
    *ids, queries = texts.strings_of(rows.texts)
    columns: list[Column] = [
        (b'{"trace_id":"', ids[0]),
        (b'","node_id":"', ids[1]),
        (b'","event_time_ms":', texts.integers(rows.event_times_ms)),
        (b',"model":', texts.strata(rows.strata)),
    ]
    if emit_query:
        columns.append((b',"query":"', queries))
        quote = b'"'
    if rows.levels is not None:
        columns.append((quote + b',"segments":', texts.levels(rows.levels)))
        quote = b""
    columns.append((quote + b',"revision":', texts.integers(rows.revisions)))
    columns.append((b',"grades":', texts.grades(rows.grades)))
    ranks = rows.first_ranks if rows.units is not None else np.zeros_like(rows.first_ranks)
    columns += _per_ranker(b',"rank":', rankers, texts.ranks(ranks))
    tops = texts.tops(rows.top_ids, rows.top_scores, rows.n_top, len(rankers) * len(rows))
    columns += _per_ranker(b'},"top3":', rankers, tops)
    if rows.units is None:
        return _records(ids, columns, b'},"values":{}}', len(rows))
    columns += _values(b'},"values":', rankers, measures, rows.units)
    return _records(ids, columns, b"}}", len(rows))


def encode_settled(
    settled: Iterable[SettledColumns], measures: MeasureSet, *, task: int, maturity_ms: int
) -> OutputRows:
    """One record per query, in the order of n: keys as in evaluations, values settled rows."""
    parts = list(settled)
    rows = rows_of([_settled_of_rankers(part, measures, task, maturity_ms) for part in parts])
    ns = np.concatenate([np.empty(0, np.int64), *(part.ns for part in parts)])
    return bounded(rows[np.argsort(ns, kind="stable")])


def _settled_of_rankers(
    rows: SettledColumns, measures: MeasureSet, task: int, maturity_ms: int
) -> Part:
    *ids, _ = texts.strings_of(rows.texts)
    columns: list[Column] = [
        (b'{"n":', texts.integers(rows.ns)),
        (b',"task":%d,"trace_id":"' % task, ids[0]),
        (b'","node_id":"', ids[1]),
        (b'","event_time_ms":', texts.integers(rows.event_times_ms)),
        (b',"settled_time_ms":', texts.integers(rows.event_times_ms, plus=maturity_ms)),
        (b',"offset":', texts.integers(rows.offsets)),
        (b',"model":', texts.strata(rows.strata)),
    ]
    if rows.levels is not None:
        columns.append((b',"segments":', texts.levels(rows.levels)))
    if rows.silent is not None:
        marks = (b',"silent":true' if each else b"" for each in rows.silent.tolist())
        columns.append((b"", Texts.of(marks)))
    columns.append((b',"grades":', texts.grades(rows.grades)))
    end = b',"values":{}'
    if rows.units is not None:
        columns += _values(b',"values":', rows.rankers, measures, rows.units)
        end = b"}"
    if rows.logged is not None:
        columns.append((end, Texts.of(map(_logged_members, rows.logged))))
        end = b""
    if rows.offered is not None:
        columns.append((end, Texts.of(training_members(rows.offered))))
        end = b""
    return _records(ids, columns, end + b"}", len(rows))


def _logged_members(logged: LoggedQuery | None) -> bytes:
    """Members of a settled query on its served order, from a comma on."""
    members: dict[str, object] = {}
    if logged is not None and logged.exposed is not None:
        members["exposed"] = f"{logged.exposed:x}"
    if logged is not None and logged.candidates:
        members["logged"] = logged.candidates
    return b"," + _encode(members)[1:-1] if members else b""


def training_members(offered: OfferedColumns) -> list[bytes]:
    """Members of settled queries that only learning reads, from a comma on."""
    columns = (
        *(offered.names, offered.candidate_ids, offered.features),
        *(offered.propensities, offered.described, offered.sources),
    )
    found = []
    for names, candidate_ids, features, propensities, described, sources in zip(
        *columns, strict=True
    ):
        members: dict[str, object] = {"sources": sources}
        if names is not None:
            members |= {"candidate_ids": candidate_ids, "feature_names": names}
            members["features"] = features.tolist()
        elif described is not None:
            members |= _description(described)
        if propensities is not None:
            members["propensities"] = list(propensities)
        text = _encode(members)
        if len(text) > MAX_OFFERED_BYTES or len(_encode(names)) > MAX_NAMES_BYTES:
            text = _encode({"sources": sources, "too_large": len(text)})
        found.append(b"," + text[1:-1])
    return found


def _description(described: Described) -> dict[str, object]:
    members: dict[str, object] = {
        "candidate_ids": list(described.candidate_ids),
        "candidate_kind": described.kind,
        "query": described.query,
    }
    if described.descriptions:
        members["descriptions"] = list(described.descriptions)
    if described.kind == "graph":
        members["graphs"] = list(map(asdict, described.graphs))
    return members


def encode_watermark(record: WatermarkRecord, *, task: int) -> OutputRecord:
    """The watermark record, which has no key."""
    members = {"task": task, "watermark_ms": record.watermark_ms, "n": record.n}
    return OutputRecord(None, _encode(members))


def _records(ids: Sequence[Names], columns: Sequence[Column], end: bytes, n: int) -> Part:
    """Rows with the texts of trace_id and node_id as their key."""
    trace_ids, node_ids = (each._replace() for each in ids)  # sources apart from the value's
    key = (b'["', trace_ids), (b'","', node_ids), (b'"]', None)
    return Part([*key, *columns, (end, None)], n)


def _values(
    before: bytes, rankers: Sequence[str], measures: MeasureSet, units: IntArray
) -> list[Column]:
    """An open object of one object of values per ranker, from flat units."""
    places = tuple(measures.columns[spelling] for spelling in measures.spellings)
    width = len(measures.canonical)
    objects = texts.values_under(measures.spellings, places, width)
    return _per_ranker(before, rankers, objects.of(units.reshape(-1, width)))


def _per_ranker(before: bytes, rankers: Sequence[str], items: Source) -> list[Column]:
    """An open object of one member per ranker, from items `[n_rows, n_rankers]`."""
    opening = [before + b"{", *repeat(b",", len(rankers) - 1)]
    return [
        (start + _encode(ranker) + b":", items)
        for start, ranker in zip(opening, rankers, strict=True)
    ]


# --- windows and dead letters ----------------------------------------------------------------


def spell_windows(windows: Iterable[FinalWindow], measures: MeasureSet) -> list[FinalWindow]:
    """Each window, once per configured spelling of its measure."""
    spellings: dict[str, list[str]] = {}
    for spelling in measures.spellings:
        spellings.setdefault(measures.canonical_of(spelling), []).append(spelling)
    return [
        window._replace(measure=spelling)
        for window in windows
        for spelling in spellings[window.measure]
    ]


def window_row(window: FinalWindow, *, window_ms: int) -> dict[str, str | int]:
    """The members of a row of windows.ndjson."""
    start_ms = window.start_ms
    return {"start_ms": start_ms, "end_ms": start_ms + window_ms, **window._asdict()}


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
    """The original key, value and headers, then topic, partition, offset, reason and detail.

    The header `truncated` of a value that was cut is its number of bytes.
    """
    records = []
    for letter in letters:
        headers = (
            *((name, value or b"") for name, value in letter.headers),
            ("topic", topic_names[letter.log].encode()),
            ("partition", str(partition).encode()),
            ("offset", str(letter.offset).encode()),
            ("reason", letter.reason.encode()),
            ("detail", letter.detail.encode("utf-8", "backslashreplace")),
            *([] if letter.cut_from is None else [("truncated", b"%d" % letter.cut_from)]),
        )
        key, headers = shorter_key(letter.key, headers)
        records.append(OutputRecord(key, letter.value, headers))
    return records


def dead_letter_row(letter: DeadLetter, topic_name: str, *, partition: int) -> dict[str, object]:
    """The members of a row of dead-letters.ndjson; bytes in base64, no key is null."""
    return {
        "topic": topic_name,
        "partition": partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "detail": letter.detail.encode("utf-8", "backslashreplace").decode(),
        "key": None if letter.key is None else b64encode(letter.key).decode(),
        "value": b64encode(letter.value).decode(),
        **({} if letter.cut_from is None else {"truncated": letter.cut_from}),
        **({"headers": _headers_row(letter)} if letter.headers else {}),
    }


def _headers_row(letter: DeadLetter) -> list[tuple[str, str | None]]:
    return [
        (name, None if value is None else b64encode(value).decode())
        for name, value in letter.headers
    ]


# --- totals ----------------------------------------------------------------------------------


def totals_document(
    tally: Tally, measures: MeasureSet, segments: SegmentRules = NO_SEGMENTS
) -> dict[str, object]:
    """The shape of totals.json, rows by kind, labels and configured measure.

    With *segments* there are rows by level, those without queries left out; *tally* is folded.
    """
    rows = _totals_rows(tally, {"running", "settled"}, measures, measures.spellings)
    by_level = _totals_rows(
        *(tally, {"segment_running", "segment_settled"}, measures),
        segments.measures or measures.spellings,
    )
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
        "totals": rows,
        **({"segments": [row for row in by_level if row["queries"]]} if segments.names else {}),
    }


def _totals_rows(
    tally: Tally, kinds: Collection[str], measures: MeasureSet, spellings: Sequence[str]
) -> list[dict[str, object]]:
    """Rows of paths (kind, model, variant[, segment, level], ranker, measure, figure)."""
    rows: list[dict[str, object]] = []
    for path in sorted({path[:-2] for path in tally if path[0] in kinds}):
        kind, model, variant, *level, ranker = path
        for spelling in spellings:
            measured = (*path, measures.canonical_of(spelling))
            queries = tally.get((*measured, "queries"), 0)
            sum_units = tally.get((*measured, "sum_units"), 0)
            rows.append(
                {
                    "kind": kind.removeprefix("segment_"),
                    "model": model,
                    "variant": variant,
                    "ranker": ranker,
                    "measure": spelling,
                    **dict(zip(("segment", "level"), level, strict=False)),
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
