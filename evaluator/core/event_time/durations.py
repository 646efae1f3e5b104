"""How long things take, in ms: the settings that give the join its meaning."""

from dataclasses import dataclass, replace
from math import inf

from evaluator.core.event_time.clock import LONGEST_MS


def seconds_of(ms: int) -> float:
    """A duration or moment in seconds; infinite where no float is so large.

    >>> seconds_of(1_500), seconds_of(-(10**400))
    (1.5, -inf)
    """
    try:
        return ms / 1000
    except OverflowError:
        return inf if ms > 0 else -inf


@dataclass(frozen=True, slots=True)
class Durations:
    """The settings of the same names."""

    retention_ms: int
    maturity_ms: int
    early_ms: int
    remember_ms: int
    out_of_orderness_ms: int
    window_ms: int

    def clamped(self) -> "Durations":
        """The same with no age longer than any two timestamps can be apart."""
        return replace(
            self,
            retention_ms=min(self.retention_ms, LONGEST_MS),
            maturity_ms=min(self.maturity_ms, LONGEST_MS),
            early_ms=min(self.early_ms, LONGEST_MS),
            remember_ms=min(self.remember_ms, LONGEST_MS),
        )

    @property
    def key_reserved_ms(self) -> int:
        """How long a key is taken after it was named."""
        return self.retention_ms + self.remember_ms + self.early_ms

    @property
    def state_ms(self) -> int:
        """How far behind the watermark a query can lie that still matters to the state."""
        return max(self.key_reserved_ms, self.retention_ms + self.window_ms)
