"""Finds malformed records by the models and the rules of time, without the fast decoder."""

from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.messages.strict import read_message
from tests.oracle.messages import Log, Raw, Refusal, has_timestamp

MAX_FUTURE_SKEW_MS = 300_000
"""The default of the setting."""


def by_the_models(log: Log, max_future_skew_ms: int = MAX_FUTURE_SKEW_MS) -> Refusal:
    """The reason why a record with a value is malformed, or None."""
    model = Ranking if log == "rankings" else Judgment

    def refuses(raw: Raw) -> str | None:
        message = read_message(raw.value or b"", model)
        if isinstance(message, Malformed):
            return message.reason
        return refusal_of_time(raw, message.timestamp_ms, max_future_skew_ms)

    return refuses


def refusal_of_time(raw: Raw, stated_ms: int | None, max_future_skew_ms: int) -> str | None:
    """Whether there is no timestamp, or it is beyond the record's own by more than the skew."""
    if not has_timestamp(raw):
        return "schema" if stated_ms is None else None
    assert raw.timestamp_ms is not None
    if stated_ms is not None and stated_ms - raw.timestamp_ms > max_future_skew_ms:
        return "future"
    return None
