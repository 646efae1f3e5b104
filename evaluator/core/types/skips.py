"""Ranges of skipped offsets, ascending and disjoint."""

from collections.abc import Iterable, Mapping, Sequence

from evaluator.core.types.records import Log

OffsetRange = tuple[int, int]
"""First and last offset."""
Skips = Mapping[tuple[Log, int], Sequence[OffsetRange]]
"""Skipped offsets by log and partition."""


def merged(ranges: Iterable[OffsetRange], *, step: int = 1) -> list[OffsetRange]:
    """The same ranges in order; those at most *step* apart are one.

    >>> merged([(7, 9), (3, 4), (5, 5), (8, 12)])
    [(3, 5), (7, 12)]
    >>> merged([(7, 9), (3, 4), (12, 12)], step=3)
    [(3, 12)]
    """
    found: list[OffsetRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + step:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def between(ranges: Iterable[OffsetRange], start: int, end: int) -> list[OffsetRange]:
    """The part of the ranges from *start* to before *end*.

    >>> between([(3, 5), (7, 12)], 4, 9)
    [(4, 5), (7, 8)]
    """
    cut = ((max(first, start), min(last, end - 1)) for first, last in ranges)
    return [(first, last) for first, last in cut if first <= last]


def covered(ranges: Sequence[OffsetRange], first: int, last: int) -> bool:
    """Whether one of the ranges has all offsets from *first* to *last*."""
    return any(low <= first and last <= high for low, high in ranges)


def partition_missing(topic: str, partition: int, n_partitions: int) -> str:
    """The error of a skip in a partition that does not exist."""
    numbers = f"{n_partitions} partitions, 0 to {n_partitions - 1}"
    return (
        f"--skip names partition {partition} of {topic}, and the inputs have "
        f"{'1 partition, 0' if n_partitions == 1 else numbers}. Name the partition of the damaged "
        "record."
    )


def n_offsets(ranges: Iterable[OffsetRange]) -> int:
    """Number of offsets in the ranges."""
    return sum(last - first + 1 for first, last in ranges)
