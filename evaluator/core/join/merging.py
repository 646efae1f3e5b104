"""Merging of grades by source: the grades of one candidate that count."""

from collections.abc import Mapping
from typing import Final

Stamp = tuple[int, int]
"""Timestamp and offset of a judgment; the larger one is later."""

MERGES: Final = ("last", "max")
"""Of the grades of one source on a candidate the latest counts, or the largest."""


class GradeMerge:
    """The rule of each source: *by_source*, and *default* for all others."""

    def __init__(self, default: str = "last", by_source: Mapping[str, str] | None = None) -> None:
        self._default = default
        self._by_source = dict(by_source or {})

    @property
    def by_time_alone(self) -> bool:
        """Whether of all grades the latest counts, so that sources make no difference."""
        return {self._default, *self._by_source.values()} == {"last"}

    def takes_max(self, source: str) -> bool:
        """Whether the largest grade of a source counts."""
        return self._by_source.get(source, self._default) == "max"


class GradesBySource:
    """The grades of one candidate by source: those that count, or can count after further ones.

    Of each source the stamps ascend and, if its largest grade counts, the grades descend: a grade
    with an equal or larger one after it can never count again.
    """

    __slots__ = ("_by_source", "_withdrawn")

    def __init__(self) -> None:
        self._withdrawn: Stamp = (-1, -1)
        self._by_source: dict[str, list[tuple[Stamp, float]]] = {}

    def add(self, stamp: Stamp, source: str, grade: float | None, *, takes_max: bool) -> None:
        """Adds a grade; None withdraws all earlier ones, of every source."""
        if stamp <= self._withdrawn:
            return
        if grade is None:
            self._withdrawn = stamp
            for name, entries in list(self._by_source.items()):
                self._by_source[name] = [entry for entry in entries if entry[0] > stamp]
                if not self._by_source[name]:
                    del self._by_source[name]
            return
        entries = self._by_source.get(source, [])
        after = [entry for entry in entries if entry[0] > stamp]
        if any(not takes_max or later >= grade for _, later in after):
            return
        before = entries[: len(entries) - len(after)]
        kept = [entry for entry in before if takes_max and entry[1] > grade]
        self._by_source[source] = [*kept, (stamp, grade), *after]

    def merged(self) -> tuple[int, int, float | None]:
        """Timestamp and offset of the grade that counts, and the grade; None if all are withdrawn.

        Across sources the one with the latest grade wins.
        """
        if not self._by_source:
            return (*self._withdrawn, None)
        entries = max(self._by_source.values(), key=lambda entries: entries[-1][0])
        return (*entries[-1][0], entries[0][1])
