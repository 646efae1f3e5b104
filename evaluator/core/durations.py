"""How long things take, in ms: the settings that give the join its meaning."""

from dataclasses import dataclass, fields, replace

from evaluator.core.clock import LONGEST_MS


@dataclass(frozen=True, slots=True)
class Durations:
    """The settings of the same names; none of them matters beyond LONGEST_MS."""

    retention_ms: int
    maturity_ms: int
    early_ms: int
    remember_ms: int
    out_of_orderness_ms: int
    window_ms: int

    def clamped(self) -> "Durations":
        """The same with nothing longer than any two timestamps can be apart."""
        return replace(
            self, **{each.name: min(getattr(self, each.name), LONGEST_MS) for each in fields(self)}
        )

    @property
    def key_taken_ms(self) -> int:
        """How long a key is taken after it was named."""
        return self.retention_ms + self.remember_ms + self.early_ms

    @property
    def state_ms(self) -> int:
        """How far behind the watermark a query can lie that still matters to the state."""
        return max(self.key_taken_ms, self.retention_ms + self.window_ms)
