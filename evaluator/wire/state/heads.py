"""The head of a task in JSON: its members and the bounds of their values."""

from typing import Annotated, Any, Final, Generic, NotRequired, TypedDict, TypeVar, cast

import msgspec

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.changes import Head
from evaluator.core.measures.exact_sums import DELAY_BOUNDS_SECONDS
from evaluator.core.types.records import Log
from evaluator.wire.reading import Count, Int64, Sum, checked_sums
from evaluator.wire.state.origin import OriginRow, origin_from

T = TypeVar("T")

N_DELAYS: Final = len(DELAY_BOUNDS_SECONDS) + 2
"""Numbers of `DelayHistogram.as_list`."""


class PerLog(TypedDict, Generic[T]):
    """A value of each log."""

    rankings: T
    judgments: T


class _Read(TypedDict):
    read: Count
    malformed: Count
    heartbeat: Count
    left_out: NotRequired[Count]  # with a mapping


class _Again(TypedDict):
    duplicate: Int64
    conflicting: Int64


class _Outcomes(_Again):
    late: Int64
    orphan: Int64
    over_limit: Int64
    applied: Int64


class _Counts(TypedDict):
    started: Count
    out_of_order: Count
    with_value: Int64
    expired: Int64
    settled: Count
    nothing_relevant: Count
    lost: Count


class HeadRow(TypedDict):
    """A `Head` in JSON."""

    positions: PerLog[Count]
    clocks_ms: PerLog[Count | None]
    time_index: PerLog[list[tuple[Count, Count]]]
    read: PerLog[_Read]
    again: _Again
    outcomes: _Outcomes
    dead_letters: dict[str, Count]
    counts: _Counts
    delays: Annotated[list[Sum], msgspec.Meta(min_length=N_DELAYS, max_length=N_DELAYS)]
    n_keys: Count
    next_run: Count
    origin: OriginRow
    skipped: NotRequired[dict[Log, list[tuple[Count, Count]]]]  # missing in older records
    activity: list[Int64]


def checked_head(row: HeadRow) -> Head:
    """The head. Raises ValueError for impossible delays or skipped ranges."""
    *counts, sum_ms = checked_sums(row["delays"])
    if min(counts) < 0 or max(counts) > MAX_TIMESTAMP_MS or sum_ms < 0:
        raise ValueError(f"delays are {row['delays']}")
    if any(first > last for of in row.get("skipped", {}).values() for first, last in of):
        raise ValueError("a skipped range ends before it begins")
    times = row["activity"]
    if len(times) % 2 != bool(times) or sorted(times[1:]) != times[1:]:
        raise ValueError(f"the activity of a log is {times[:5]} ...")
    return Head(**cast("Any", {**row, "origin": origin_from(row["origin"])}))
