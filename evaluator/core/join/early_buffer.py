"""Judgments whose ranking has not come yet."""

import heapq
from collections.abc import Callable, Iterable

from evaluator.core.join.judgments import PendingJudgment
from evaluator.core.types.records import Key


class EarlyBuffer:
    """Judgments by key, in offset order, with a timer each."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[int, PendingJudgment]] = {}  # by offset
        self._timers: list[tuple[int, Key, int]] = []  # heap of (event time, key, offset)
        self._n = 0
        self.touched: dict[int, PendingJudgment | None] | None = None  # by offset

    def __len__(self) -> int:
        return self._n

    def add(self, judgment: PendingJudgment) -> None:
        """Lets a judgment wait."""
        self._by_key.setdefault(judgment.key, {})[judgment.offset] = judgment
        heapq.heappush(self._timers, (judgment.event_ms, judgment.key, judgment.offset))
        self._n += 1
        if self.touched is not None:
            self.touched[judgment.offset] = judgment

    def keep(self, key: Key, wanted: Callable[[PendingJudgment], bool]) -> None:
        """Lets only those judgments of a key wait on that are *wanted*, asked in offset order."""
        early = self._by_key.pop(key, {})
        kept = {at: judgment for at, judgment in early.items() if wanted(judgment)}
        self._n -= len(early) - len(kept)
        self._gone(early.keys() - kept.keys())
        if kept:
            self._by_key[key] = kept

    def expire(self, limit_ms: int) -> list[PendingJudgment]:
        """Removes judgments with an event time < *limit_ms*, by (event time, key, offset)."""
        expired: list[PendingJudgment] = []
        while self._timers and self._timers[0][0] < limit_ms:
            _, key, offset = heapq.heappop(self._timers)
            early = self._by_key.get(key, {})
            judgment = early.pop(offset, None)
            if judgment is not None:  # else it found its query meanwhile
                expired.append(judgment)
            if key in self._by_key and not early:
                del self._by_key[key]
        self._n -= len(expired)
        self._gone(judgment.offset for judgment in expired)
        return expired

    def _gone(self, offsets: Iterable[int]) -> None:
        if self.touched is not None:
            self.touched |= dict.fromkeys(offsets)
