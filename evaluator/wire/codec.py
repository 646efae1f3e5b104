"""A poll batch of records -> columns.

Each batch goes through in slices, so that the rows of a slice are gone before the next one:
thousands of decoded rows alive at once cost more than decoding them. What the fast reader
does not take, `wire/strict.py` decides; a message it accepts becomes a row like the others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import msgspec
import numpy as np
import simdjson
from msgspec import Raw

from evaluator.core.strings import PackedStrings
from evaluator.core.types import JudgmentColumns, RankingColumns
from evaluator.wire.fast import (
    ABSENT,
    NO_TIMESTAMP,
    JudgmentRow,
    RankingRow,
    hides_nothing,
    judgment_of_any_members,
    may_have_negatives,
    plain_judgments,
    plain_rankings,
    ranking_of_any_members,
)
from evaluator.wire.intake import Intake
from evaluator.wire.models import Judgment, Ranking
from evaluator.wire.numbers import Numbers, n_lists, read_numbers
from evaluator.wire.records import Records
from evaluator.wire.strict import Malformed, read_message

_SLICE: Final = 128
RowT = TypeVar("RowT", RankingRow, JudgmentRow)
Grades = dict[str, float | None]


def decode_rankings(records: Records, *, max_future_skew_ms: int) -> RankingColumns:
    """The rankings among *records*, their heartbeats, and what is malformed."""
    intake = Intake(records, max_future_skew_ms)
    parser = simdjson.Parser()
    trace_ids: list[str] = []
    node_ids: list[str] = []
    models: list[str] = []
    variants: list[str] = []
    queries: list[str] = []
    rankers: list[tuple[str, ...]] = []
    counts: list[int] = []
    candidate_ids: list[PackedStrings] = []
    scores = [np.zeros(0)]
    explicit_ranks: dict[int, list[int]] = {}
    for start in range(0, len(records), _SLICE):
        values = records.values[start : start + _SLICE]
        rows, numbers = _admitted_rankings(intake, start, values, parser)
        for index, ranks in numbers.ranks.items():
            explicit_ranks[len(trace_ids) + index] = ranks
        trace_ids += [row.trace_id for row in rows]
        node_ids += [row.node_id for row in rows]
        models += [row.model for row in rows]
        variants += [row.variant for row in rows]
        queries += [row.query for row in rows]
        candidate_ids.append(numbers.ids)
        rankers += numbers.rankers
        counts += numbers.counts
        scores.append(numbers.scores)
    return RankingColumns(
        **intake.columns(trace_ids, node_ids),
        models=models,
        variants=variants,
        queries=queries,
        rankers=rankers,
        candidate_counts=np.array(counts, dtype=np.int64),
        candidate_ids=PackedStrings.joined(candidate_ids),
        scores=np.concatenate(scores),
        explicit_ranks=explicit_ranks,
    )


def decode_judgments(records: Records, *, max_future_skew_ms: int) -> JudgmentColumns:
    """The judgments among *records*, their heartbeats, and what is malformed."""
    intake = Intake(records, max_future_skew_ms)
    trace_ids: list[str] = []
    node_ids: list[str] = []
    sources: list[str] = []
    judgment_ids: list[str | None] = []
    grades: list[Mapping[str, float | None]] = []
    for start in range(0, len(records), _SLICE):
        values = records.values[start : start + _SLICE]
        rows = _admitted_judgments(intake, start, values)
        trace_ids += [row.trace_id for row in rows]
        node_ids += [row.node_id for row in rows]
        sources += [row.source for row in rows]
        judgment_ids += [row.judgment_id for row in rows]
        grades += _readable_grades(rows, intake.values[len(grades) :])
    return JudgmentColumns(
        **intake.columns(trace_ids, node_ids),
        sources=sources,
        judgment_ids=judgment_ids,
        grades=grades,
    )


def _admitted_rankings(
    intake: Intake, start: int, values: Sequence[bytes | None], parser: simdjson.Parser
) -> tuple[list[RankingRow], Numbers]:
    """The rankings among *values* that count, and their numbers."""
    rows = plain_rankings(values)
    numbers = _plain_numbers(rows, values, parser)
    n_plain = len(rows) - rows.count(None)
    if numbers is not None and n_plain == len(rows):
        admitted = intake.admit_rows(start, cast("list[RankingRow]", rows))
    else:
        if numbers is None:
            _leave_out_odd_plain_ones(rows, values, parser)
        outcomes = _decided_rankings(rows, values, parser)
        admitted = intake.admit(start, outcomes)
        if sum(isinstance(each, RankingRow) for each in outcomes) != n_plain:
            numbers = None  # those of other rows are still to be read
    if numbers is None or len(admitted) != n_plain:
        numbers = read_numbers(admitted, parser)
    if numbers is None:
        raise AssertionError("a row with odd numbers was neither left out nor decided")
    return admitted, numbers


def _plain_numbers(
    rows: Sequence[RankingRow | None], values: Sequence[bytes | None], parser: simdjson.Parser
) -> Numbers | None:
    """The numbers of the plain rows that there are; None if one of those rows is odd."""
    if all(rows):
        there, texts = cast("Sequence[RankingRow]", rows), cast("Sequence[bytes]", values)
    else:
        there = [row for row in rows if row is not None]
        texts = [value for row, value in zip(rows, values, strict=True) if row and value]
    numbers = read_numbers(there, parser)
    if numbers is None or hides_nothing(there, texts, n_number_lists=numbers.n_lists):
        return numbers
    one_by_one = zip(there, texts, strict=True)
    clear = all(
        hides_nothing([row], [text], n_number_lists=n_lists(row)) for row, text in one_by_one
    )
    return numbers if clear else None


def _leave_out_odd_plain_ones(
    rows: list[RankingRow | None], values: Sequence[bytes | None], parser: simdjson.Parser
) -> None:
    def are_sound(some: list[int]) -> bool:
        found = _plain_numbers([rows[k] for k in some], [values[k] for k in some], parser)
        return found is not None

    _leave_out(rows, range(len(rows)), are_sound)


def _decided_rankings(
    rows: list[RankingRow | None], values: Sequence[bytes | None], parser: simdjson.Parser
) -> Sequence[RankingRow | Malformed | None]:
    """What each value is: ever slower readers take what the faster leave open."""

    def numbers_are_sound(some: list[int]) -> bool:
        there = [row for k in some if (row := rows[k]) is not None]
        return read_numbers(there, parser) is not None

    left_open = [k for k, row in enumerate(rows) if row is None]
    for k in left_open:
        value = values[k]
        rows[k] = None if value is None else ranking_of_any_members(value)
    _leave_out(rows, left_open, numbers_are_sound)
    return _decided(values, rows, _read_ranking)


def _leave_out(
    rows: list[RankingRow | None],
    indices: Sequence[int],
    are_sound: Callable[[list[int]], bool],
) -> None:
    """Puts None in place of those rows that are not sound; halves to find them."""
    pending = [[k for k in indices if rows[k] is not None]]
    while pending:
        some = pending.pop()
        if are_sound(some):
            continue
        if len(some) == 1:
            rows[some[0]] = None
            continue
        middle = len(some) // 2
        pending += [some[:middle], some[middle:]]


def _decided(
    values: Sequence[bytes | None],
    rows: Sequence[RowT | None],
    read: Callable[[bytes], RowT | Malformed],
) -> Sequence[RowT | Malformed | None]:
    """What each value is, by the book where it was left open; None is a heartbeat."""
    return [
        read(value) if row is None and value is not None else row
        for value, row in zip(values, rows, strict=True)
    ]


def _admitted_judgments(
    intake: Intake, start: int, values: Sequence[bytes | None]
) -> list[JudgmentRow]:
    """The judgments among *values* that count: ever slower readers take what is left open."""
    rows = plain_judgments(values)
    if all(rows):
        return intake.admit_rows(start, cast("list[JudgmentRow]", rows))
    for k, value in enumerate(values):
        if rows[k] is None and value is not None:
            rows[k] = judgment_of_any_members(value)
    return intake.admit(start, _decided(values, rows, _read_judgment))


def _read_ranking(value: bytes) -> RankingRow | Malformed:
    """By the book; the numbers become text again, to be read with those of the other rows."""
    message = read_message(value, Ranking)
    if isinstance(message, Malformed):
        return message
    scores = message.all_scores()
    scorers = message.named_scorers()
    return RankingRow(
        schema_version=1,
        trace_id=message.trace_id,
        node_id=message.node_id,
        candidate_ids=_text(message.all_ids()),
        scores=ABSENT if scores is None else _text(scores),
        timestamp_ms=NO_TIMESTAMP if message.timestamp_ms is None else message.timestamp_ms,
        model=message.model or "",
        variant=message.variant or "",
        query=message.query or "",
        scorers={name: _text(numbers) for name, numbers in scorers.items()},
        ranks=message.ranks,
    )


def _text(values: Sequence[float] | Sequence[str]) -> Raw:
    return Raw(msgspec.json.encode(values))


def _read_judgment(value: bytes) -> JudgmentRow | Malformed:
    """By the book."""
    message = read_message(value, Judgment)
    if isinstance(message, Malformed):
        return message
    return JudgmentRow(
        schema_version=1,
        trace_id=message.trace_id,
        node_id=message.node_id,
        grades=message.grades,
        timestamp_ms=NO_TIMESTAMP if message.timestamp_ms is None else message.timestamp_ms,
        source=message.source or "",
        judgment_id=message.judgment_id,
    )


def _readable_grades(rows: Sequence[JudgmentRow], values: Sequence[bytes]) -> list[Grades]:
    """Grades as the columns want them: None for a negative one, 0.0 for -0.0."""
    grades = [row.grades for row in rows]
    if not may_have_negatives(values):
        return grades
    return [
        {
            candidate_id: None if grade is None or grade < 0 else grade + 0.0
            for candidate_id, grade in each.items()
        }
        for each in grades
    ]
