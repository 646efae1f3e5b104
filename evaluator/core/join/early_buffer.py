"""Early judgments: their ranking has not been read."""

import heapq
from collections.abc import Callable, Iterable

from evaluator.core.columns.key_hashes import Key
from evaluator.core.join.judgments import PendingJudgment


class EarlyBuffer:
    """Early judgments by key, in offset order, each with a timer."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[int, PendingJudgment]] = {}  # by offset
        self._timers: list[tuple[int, tuple[str, str], int, Key]] = []  # see `expire`; a heap
        self._n = 0
        self.touched: dict[int, PendingJudgment | None] | None = None  # by offset; None: removed

    def __len__(self) -> int:
        return self._n

    def add(self, judgment: PendingJudgment) -> None:
        """Adds a judgment."""
        self._by_key.setdefault(judgment.key, {})[judgment.offset] = judgment
        timer = (judgment.event_ms, judgment.names, judgment.offset, judgment.key)
        heapq.heappush(self._timers, timer)
        self._n += 1
        if self.touched is not None:
            self.touched[judgment.offset] = judgment

    def among(self, keys: Iterable[Key]) -> list[Key]:
        """The keys with early judgments, each once."""
        return list(dict.fromkeys(key for key in keys if key in self._by_key))

    def keep(self, key: Key, is_early: Callable[[PendingJudgment], bool]) -> None:
        """Removes the judgments of a key that are no longer early; calls in offset order."""
        early = self._by_key.pop(key, {})
        kept = {at: judgment for at, judgment in early.items() if is_early(judgment)}
        self._remove(early.keys() - kept.keys())
        if kept:
            self._by_key[key] = kept

    def expire(self, limit_ms: int) -> list[PendingJudgment]:
        """Removes judgments with an event time < *limit_ms*, by (event time, names, offset)."""
        expired: list[PendingJudgment] = []
        while self._timers and self._timers[0][0] < limit_ms:
            _, _, offset, key = heapq.heappop(self._timers)
            early = self._by_key.get(key, {})
            if offset in early:
                expired.append(early.pop(offset))
                if not early:
                    del self._by_key[key]
        self._remove([judgment.offset for judgment in expired])
        return expired

    def _remove(self, offsets: Iterable[int]) -> None:
        removed = dict.fromkeys(offsets)
        self._n -= len(removed)
        if self.touched is not None:
            self.touched |= removed
