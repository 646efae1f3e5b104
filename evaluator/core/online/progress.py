"""Progressive validation: the learned weights on queries that they have not learned from yet."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from evaluator.core.measures import UNITS_PER_ONE

REFRESH: Final = 512
"""Queries of an interval after which the validated weights are taken again."""
LEAST_VALUES, MANY_VALUES = 50, 1_000


class ProgressiveValidation(Struct):
    """Differences to the champion, learned weights minus champion: number, sum and squares.

    Many numbers are halved at the end of an interval, so that older weights count less.
    """

    n: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, units: Iterable[int]) -> None:
        """Adds differences in units of 2^-40, in their order."""
        for each in units:
            difference = each / UNITS_PER_ONE
            self.n += 1.0
            self.total += difference
            self.squares += difference * difference

    def beats(self) -> bool:
        """Whether the mean is more than one standard error above 0."""
        if self.n < LEAST_VALUES or self.total <= 0:
            return False
        return self.total * self.total * (1.0 + 1.0 / self.n) > self.squares

    def end_interval(self) -> None:
        """Makes older differences count half, if there are many."""
        if self.n >= MANY_VALUES:
            self.n, self.total, self.squares = self.n / 2, self.total / 2, self.squares / 2

    def state(self) -> list[Any]:
        """Everything, as JSON stores it exactly."""
        return [self.n, self.total, self.squares]

    @classmethod
    def load(cls, state: Sequence[Any]) -> "ProgressiveValidation":
        """The same numbers. Raises ValueError if `state` has not written this."""
        n, total, squares = map(float, state)
        if n < 0 or squares < 0 or abs(total) > n * 2**20:
            raise ValueError(f"not a progressive validation: {state}")
        return cls(n, total, squares)
