"""Rules of the join: age bounds, outcomes, limits, and the winning grade.

The fast path (columns) and the slow path (one judgment at a time) read the same table.
"""

from bisect import bisect_left
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.columns.table import IntArray
from evaluator.core.event_time.clock import LONGEST_MS, MAX_TIMESTAMP_MS
from evaluator.core.event_time.timers import Timer
from evaluator.core.join.merging import GradeMerge


class Age(IntEnum):
    """Age of a judgment: its event time minus that of a ranking of its key."""

    NEGATIVE = 0  # below -early_ms
    OPEN = 1  # at most retention_ms
    REMEMBERED = 2  # at most retention_ms + remember_ms
    PAST = 3


class Identity(IntEnum):
    """A judgment compared with the applied judgments of its query."""

    NEW = 0
    EQUAL = 1  # the judgment_id and the bytes; without a judgment_id, the bytes
    DIFFERENT = 2  # the judgment_id, but not the bytes


Outcome = Literal["applied", "duplicate", "conflicting", "late", "older", "early"]

OUTCOMES: Final[Mapping[Age, tuple[Outcome, Outcome, Outcome]]] = {
    # by Identity:    NEW        EQUAL        DIFFERENT
    Age.NEGATIVE: ("older", "older", "older"),  # decided by the older query of the key, if any
    Age.OPEN: ("applied", "duplicate", "conflicting"),
    Age.REMEMBERED: ("late", "late", "late"),
    Age.PAST: ("early", "early", "early"),  # waits for the next ranking of the key
}
"""Outcome of a judgment by age and identity. An applied one over a limit is `over_limit`."""

_ROWS: Final = tuple(OUTCOMES.values())
_APPLIES: Final = np.array([[each == "applied" for each in row] for row in _ROWS])


class JoinRules(Struct, frozen=True, dict=True):
    """The settings of the same names, and the most judgments and candidates of one query.

    `max_candidates` bounds the candidates in the grades of applied judgments, withdrawn ones
    included.
    """

    retention_ms: int
    maturity_ms: int
    early_ms: int
    remember_ms: int
    out_of_orderness_ms: int
    window_ms: int
    max_judgments: int = 1_000
    max_candidates: int = 10_000
    grades_merge: str = "last"
    grades_merge_by_source: tuple[tuple[str, str], ...] = ()

    @cached_property
    def merge(self) -> GradeMerge | None:
        """How grades merge by source; None if the latest grade counts, whatever its source."""
        merge = GradeMerge(self.grades_merge, dict(self.grades_merge_by_source))
        return None if merge.by_time_alone else merge

    def clamped(self) -> "JoinRules":
        """The same rules with ages limited to the longest distance of two timestamps."""
        ages = ("retention_ms", "maturity_ms", "early_ms", "remember_ms")
        return replace(self, **{name: min(getattr(self, name), LONGEST_MS) for name in ages})

    @property
    def key_reserved_ms(self) -> int:
        """How long a key is reserved after the latest ranking of it."""
        return self.retention_ms + self.remember_ms + self.early_ms

    @property
    def state_ms(self) -> int:
        """Age behind the watermark up to which a query affects the state."""
        return max(self.key_reserved_ms, self.retention_ms + self.window_ms)

    def timer_limits(self, watermark_ms: int) -> dict[Timer, int]:
        """Each timer is due for queries with an event time before its limit."""
        return {
            "settle": watermark_ms - self.maturity_ms,
            "expire": watermark_ms - self.retention_ms,
            "release": watermark_ms - self.key_reserved_ms,
        }

    # Judgments

    @cached_property
    def _age_bounds(self) -> list[int]:
        """The largest age of each `Age` but the last, within int64."""
        bounds = (-self.early_ms - 1, self.retention_ms, self.retention_ms + self.remember_ms)
        return [max(-MAX_TIMESTAMP_MS - 1, min(ms, MAX_TIMESTAMP_MS)) for ms in bounds]

    def outcome(self, age_ms: int, identity: Identity = Identity.NEW) -> Outcome:
        """Outcome of one judgment, apart from limits."""
        return _ROWS[bisect_left(self._age_bounds, age_ms)][identity]

    def applies(self, ages_ms: IntArray, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether the outcome is "applied", elementwise; *seen*: the identity is not NEW."""
        applies: NDArray[np.bool_] = _APPLIES[
            np.searchsorted(self._age_bounds, ages_ms), seen.view(np.int8)
        ]
        return applies

    def by_maturity(self, ages_ms: Any) -> Any:
        """Whether judgments of these ages count in the settled value, elementwise."""
        return ages_ms <= self.maturity_ms

    def over_limit(self, n_applied: Any, n_graded: Any) -> Any:
        """Whether a further judgment exceeds a limit of its query, elementwise.

        Args:
            n_applied: judgments that were applied to the query.
            n_graded: candidates with a grade, those of the new judgment included.
        """
        return (n_applied >= self.max_judgments) | (n_graded > self.max_candidates)

    # Rankings

    def reserved(self, age_ms: int) -> bool:
        """Whether a key is still reserved, this long after the latest ranking of it."""
        return age_ms <= self.key_reserved_ms


def ranking_outcome(*, equal: bool) -> Literal["duplicate", "conflicting"]:
    """Outcome of a ranking of a reserved key; *equal*: the bytes of the latest ranking of it."""
    return "duplicate" if equal else "conflicting"


def is_later(timestamps_ms: Any, offsets: Any, than_ms: Any, than_offsets: Any) -> Any:
    """Whether judgments win against others on the same candidate, elementwise."""
    return (timestamps_ms > than_ms) | ((timestamps_ms == than_ms) & (offsets > than_offsets))
