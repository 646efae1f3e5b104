"""`leader`, and the leader beside a worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from evaluator.adapters.kafka import KafkaLeadership
from evaluator.cli.promotion import record_writer_of, rules_of
from evaluator.cli.wiring import UsageError, connection_of, fingerprint_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.leader import Leader
from evaluator.ports import Leadership

log = structlog.get_logger(__name__)


def leadership_of(leadership: Leadership, settings: Settings) -> Leader:
    """This process's part in leading; *learning* is not off."""
    rules = rules_of(settings, measure_set(settings))
    record_writer = record_writer_of(settings, rules, input_fingerprint=fingerprint_of(settings))
    return Leader(leadership, rules=rules, record_writer=record_writer)


def kafka_leadership(source: str, settings: Settings) -> KafkaLeadership:
    """What leaders share on the brokers of a source."""
    return KafkaLeadership(
        connection_of(source, settings),
        group_id=settings.group_id,
        topic_prefix=settings.topic_prefix,
        session_timeout_ms=settings.session_timeout_ms,
    )


@contextlib.asynccontextmanager
async def leading(leader: Leader | None, stop: Callable[[], None]) -> AsyncIterator[None]:
    """A leader works meanwhile. If it ends by itself, *stop* is called, and its error raised."""
    if leader is None:
        yield
        return
    running = asyncio.create_task(leader.run(), name="leader")
    running.add_done_callback(lambda _: stop())
    try:
        yield
    finally:
        leader.stop()
        await running


def require_learning(settings: Settings) -> None:
    """Raises UsageError if nothing is to be learned."""
    if not settings.learns:
        raise UsageError(
            "learning is off, so there is nothing to lead. Set learning to propose or auto, "
            "for the workers too."
        )
