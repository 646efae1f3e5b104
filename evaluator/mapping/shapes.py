"""Typed decoding of JSON records: struct types that have only what some paths name."""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec

from evaluator.mapping.paths import Steps, walked

Getter = Callable[[Any], Any]


class Shape:
    """A struct type for objects, with one getter for each path.

    A path through an index, or beyond the end of another path, ends in a member of any type, and
    its getter walks from there. Members of any type that are missing or null are None, and inner
    objects that are missing are empty; an inner object that is null, or no object, does not fit.

    Args:
        paths: the type of what each path finds; None: it may be missing, or of any type.

    >>> shape = Shape({("a", "b"): None, ("c", 0): None})
    >>> record = msgspec.json.decode(b'{"a": {"b": 1}, "c": [2], "d": 3}', type=shape.type)
    >>> [shape.getters[path](record) for path in (("a", "b"), ("c", 0))]
    [1, 2]
    """

    def __init__(self, paths: Mapping[Steps, Any]) -> None:
        ends = {_until_index(steps) for steps in paths}
        cuts = {steps: _cut(steps, ends) for steps in paths}
        leaves = {cut: paths.get(cut) for cut in cuts.values()}
        for steps, cut in cuts.items():
            if steps != cut:
                leaves[cut] = None
        self._names: dict[Steps, str] = {}
        self.type: Final = self._struct(leaves, ())
        self.getters: Final = {steps: self._getter(steps, cut) for steps, cut in cuts.items()}
        self.checked: Final = {
            steps: ".".join(self._fields(cut))
            for steps, cut in cuts.items()
            if steps == cut and leaves[cut] is not None
        }
        """The attributes of the paths whose types the decoder checks."""

    def _struct(self, leaves: Mapping[Steps, Any], before: Steps) -> type[msgspec.Struct]:
        """The type of the objects at *before*."""
        fields: list[Any] = []
        rename: dict[str, str] = {}
        below = {leaf[: len(before) + 1] for leaf in leaves if leaf[: len(before)] == before}
        for place in sorted(below - {before}, key=str):
            name = self._names[place] = f"f{len(fields)}"
            rename[name] = str(place[-1])
            kind = leaves.get(place)
            if place in leaves:
                fields.append((name, kind) if kind is not None else (name, Any, None))
                continue
            inner = self._struct(leaves, place)
            may_miss = all(kind is None for at, kind in leaves.items() if at[: len(place)] == place)
            default = (msgspec.field(default_factory=inner),) if may_miss else ()
            fields.append((name, inner, *default))
        return msgspec.defstruct("Shape", fields, rename=rename, gc=False, kw_only=True)

    def _fields(self, cut: Steps) -> list[str]:
        return [self._names[cut[:n]] for n in range(1, len(cut) + 1)]

    def _getter(self, steps: Steps, cut: Steps) -> Getter:
        get, rest = attrgetter(".".join(self._fields(cut))), steps[len(cut) :]
        if not rest:
            return get
        return lambda record: walked(get(record), rest)


def _until_index(steps: Steps) -> Steps:
    return steps[: next((n for n, step in enumerate(steps) if isinstance(step, int)), len(steps))]


def _cut(steps: Steps, ends: Collection[Steps]) -> Steps:
    """The part of a path before an index, or up to the end of another path."""
    return next(steps[:n] for n in range(1, len(steps) + 1) if steps[:n] in ends)


def walkers(paths: Collection[Steps]) -> dict[Steps, Getter]:
    """Getters of the same paths for plain decoded JSON."""
    return {steps: _walker(steps) for steps in paths}


def _walker(steps: Steps) -> Getter:
    first = steps[0]
    if len(steps) > 1 or not isinstance(first, str):
        return lambda value: walked(value, steps)
    return lambda value: value.get(first) if isinstance(value, dict) else None
