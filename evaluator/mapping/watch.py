"""A warning while all records of a foreign topic are refused or left out."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import structlog

from evaluator.mapping.record import kind_of

MIN_RECORDS: Final = 1_000
WAIT_SECONDS: Final = 60.0
"""So many records for so long without a message are logged."""
REPEAT_SECONDS: Final = 600.0
MOST_KINDS: Final = 100
"""Most reasons that are counted."""

log = structlog.get_logger(__name__)


class MessageWatch:
    """Logs that a topic gives no message, with the reason of most of its records.

    Args:
        topic: its name.
        monotonic: the clock.
    """

    def __init__(self, topic: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._topic, self._monotonic = topic, monotonic
        self._logged_at = -REPEAT_SECONDS
        self._begin()

    def _begin(self) -> None:
        self._since = self._monotonic()
        self._n_records = 0
        self._kinds: Counter[str] = Counter()

    def note(self, n_messages: int, reasons: Collection[str]) -> None:
        """Notes a batch: its messages, and why records gave none."""
        if n_messages or not self._n_records:
            self._begin()
        if n_messages or not reasons:
            return
        self._n_records += len(reasons)
        for kind in map(kind_of, reasons):
            if kind in self._kinds or len(self._kinds) < MOST_KINDS:
                self._kinds[kind] += 1
        now = self._monotonic()
        waited = now - self._since >= WAIT_SECONDS and now - self._logged_at >= REPEAT_SECONDS
        if waited and self._n_records >= MIN_RECORDS:
            self._logged_at = now
            ((kind, n),) = self._kinds.most_common(1)
            log.warning(
                "topic_without_messages",
                topic=self._topic,
                records=self._n_records,
                reason=kind,
                of_this_reason=n,
                command="evaluator mapping try",
            )
