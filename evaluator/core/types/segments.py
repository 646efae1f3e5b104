"""Segments that values are summed by, and which of their levels have sums of their own.

Of each segment the declared levels are kept, and of the others the MAX_LEVELS whose texts have the
smallest hashes. A level that is kept was always kept, so its sums are complete wherever tallies
are added: in any order and any parts, their union is cut again, and the rest folded into OTHER.
"""

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from evaluator.core.types.records import OTHER
from evaluator.core.types.tally import LEVEL_KINDS, GroupedTally, Path, Tally

MAX_LEVELS: Final = 1_000
"""Limit of the kept levels of a segment, in addition to declared ones."""


def level_hash(level: str) -> bytes:
    """SHA-256 of the text of a level."""
    return hashlib.sha256(level.encode("utf-8", "surrogatepass")).digest()


class SegmentRules(Struct, frozen=True):
    """The segments, their declared levels, and spellings of the measures that are summed by level.

    Without *measures* all are.
    """

    names: tuple[str, ...] = ()
    declared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    max_levels: int = MAX_LEVELS

    def is_declared(self, segment: str, level: str) -> bool:
        """Whether a level is kept whatever its hash."""
        return level in self.declared.get(segment, ())

    def kept(self, levels: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """The kept ones of these (segment, level)."""
        found: set[tuple[str, str]] = set()
        others: dict[str, list[str]] = {}
        for segment, level in levels:
            if self.is_declared(segment, level):
                found.add((segment, level))
            elif level != OTHER:
                others.setdefault(segment, []).append(level)
        for segment, names in others.items():
            smallest = heapq.nsmallest(self.max_levels, names, key=level_hash)
            found.update((segment, level) for level in smallest)
        return found

    def fold(self, tally: Tally) -> Tally:
        """Folds the levels of a sum of tallies that are not kept into OTHER, in place."""
        if not self.names:
            return tally
        levels = {path[3:5] for path in tally if path[0] in LEVEL_KINDS}
        kept = self.kept((segment, level) for segment, level in levels)
        for path in [p for p in tally if p[0] in LEVEL_KINDS and p[4] != OTHER]:
            if path[3:5] not in kept:
                other = _in_other(path)
                tally[other] = tally.get(other, 0) + tally.pop(path)
        return tally


NO_SEGMENTS: Final = SegmentRules()


def newly_folded(before: GroupedTally, now: GroupedTally) -> Tally:
    """The sums of levels that were folded between two tallies of a task, by path of OTHER."""
    found: Tally = {}
    for group in before.groups.keys() - now.groups.keys():
        for path, n in before.groups[group].items():
            if path[0] in LEVEL_KINDS:
                found[_in_other(path)] = found.get(_in_other(path), 0) + n
    return found


def _in_other(path: Path) -> Path:
    return (*path[:4], OTHER, *path[5:])
