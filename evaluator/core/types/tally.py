"""Exact counts and sums by path, e.g. ("rankings", "read"), and tallies that share their parts."""

from collections.abc import ItemsView, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

Path = tuple[str, ...]
Tally = dict[Path, int]
"""Tallies add and subtract key by key."""
Group = tuple[str, ...]
"""(model, variant) of sums, (model, variant, segment, level) of sums by level, ("bucket", model,
variant) of histograms and of counts by position, () of all others."""

_NONE: Final = MappingProxyType[Group, Mapping[Path, int]]({})
_OF_PAIRS: Final = frozenset(("running", "settled", "settled_queries"))
LEVEL_KINDS: Final = frozenset(("segment_running", "segment_settled", "segment_settled_queries"))
"""Kinds of sums by level."""


def group_of(path: Path) -> Group:
    """The group of a path.

    >>> group_of(("settled", "m", "v", "served", "mrr", "queries"))
    ('m', 'v')
    """
    if path[0] in _OF_PAIRS:
        return path[1:3]
    if path[0] in LEVEL_KINDS:
        return path[1:5]
    return ("bucket", *path[1:3]) if path[0] in ("bucket", "position") else ()


class GroupedTally(Mapping[Path, int]):
    """A tally in groups that never change: later tallies share the groups that are equal."""

    __slots__ = ("groups",)

    def __init__(self, groups: Mapping[Group, Mapping[Path, int]] = _NONE) -> None:
        self.groups = groups

    @classmethod
    def of(cls, tally: Mapping[Path, int]) -> "GroupedTally":
        """The same counts in groups."""
        groups: dict[Group, Tally] = {}
        for path, n in tally.items():
            groups.setdefault(group_of(path), {})[path] = n
        return cls(groups)

    def __getitem__(self, path: Path) -> int:
        return self.groups[group_of(path)][path]

    def __iter__(self) -> Iterator[Path]:
        return chain.from_iterable(self.groups.values())

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def items(self) -> ItemsView[Path, int]:
        """The counts, without a search for each."""
        return _Items(self)


class _Items(ItemsView[Path, int]):
    _mapping: GroupedTally

    def __iter__(self) -> Iterator[tuple[Path, int]]:
        return chain.from_iterable(part.items() for part in self._mapping.groups.values())
