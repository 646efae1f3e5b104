"""Declared transforms of features: a clip, then log1p, before weights are learned or applied."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.core.learning.elementary import log
from evaluator.core.types.records import FloatArray

ACCEPTED: Final = "log1p, clip:LOW:HIGH or clip:LOW:HIGH+log1p"


class Transform(NamedTuple):
    """The bounds of the clip, None without one, and whether log1p follows.

    log1p keeps the sign: sign(x) ln(1 + |x|).
    """

    low: float | None = None
    high: float | None = None
    log1p: bool = False

    @classmethod
    def checked(cls, low: float | None, high: float | None, log1p: bool) -> "Transform":
        """Raises ValueError for invalid bounds, and for a transform without effect."""
        if low is None or high is None:
            possible = low is high and log1p
        else:
            possible = isfinite(low) and isfinite(high) and low <= high
        if not possible:
            raise ValueError(f"not a transform: {low}, {high}, {log1p}")
        return cls(low, high, log1p)

    @classmethod
    def parse(cls, text: str) -> "Transform":
        """The transform of a setting. Raises ValueError.

        >>> Transform.parse("clip:0:30+log1p")
        Transform(low=0.0, high=30.0, log1p=True)
        """
        if text == "log1p":
            return cls(log1p=True)
        clip, log1p = text.removesuffix("+log1p"), text.endswith("+log1p")
        kind, *bounds = clip.split(":")
        if kind != "clip" or len(bounds) != 2:
            raise ValueError(f"not a transform: {text}")
        return cls.checked(float(bounds[0]), float(bounds[1]), log1p)

    @property
    def text(self) -> str:
        """As `parse` reads it.

        >>> Transform(0.0, 30.0, log1p=True).text
        'clip:0:30+log1p'
        """
        bounds = [repr(bound).removesuffix(".0") for bound in self[:2] if bound is not None]
        clip = [":".join(["clip", *bounds])] if bounds else []
        return "+".join([*clip, *(["log1p"] if self.log1p else [])])


Transforms = Mapping[str, Transform]
"""By name of a feature."""
NO_TRANSFORMS: Final[Transforms] = MappingProxyType({})


def of_features(transforms: Transforms, names: Iterable[str]) -> Transforms:
    """The transforms of these features."""
    return {name: transforms[name] for name in sorted(names) if name in transforms}


def documents(transforms: Transforms) -> dict[str, dict[str, Any]]:
    """The transforms in a record."""
    return {name: transform._asdict() for name, transform in transforms.items()}


def loaded(found: Mapping[str, Mapping[str, Any]]) -> Transforms:
    """The transforms of `documents`. Raises ValueError."""
    return {
        name: Transform.checked(of["low"], of["high"], of["log1p"]) for name, of in found.items()
    }


def transformed(features: FloatArray, names: Sequence[str], transforms: Transforms) -> FloatArray:
    """The features `[n_candidates, n_features]` after their transforms; the same ones without any.

    >>> transformed(np.array([[-3.0, 9.0]]), ("a", "b"), {"b": Transform(0.0, 5.0)})
    array([[-3.,  5.]])
    """
    if not any(name in transforms for name in names):
        return features
    found = features.copy()
    for column, name in enumerate(names):
        if (transform := transforms.get(name)) is None:
            continue
        values = found[:, column]
        if transform.low is not None and transform.high is not None:
            values = np.clip(values, transform.low, transform.high)
        if transform.log1p:
            values = np.copysign(log(1.0 + np.abs(values)), values)
        found[:, column] = values
    return found
