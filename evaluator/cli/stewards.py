"""`steward`, and the steward beside a worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from evaluator.adapters.kafka import KafkaOffice
from evaluator.cli.stewardship import rules_of, scribe_of
from evaluator.cli.wiring import UsageError, connection_of, lineage_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.ports import Office
from evaluator.steward import Stewardship

log = structlog.get_logger(__name__)


def stewardship_of(office: Office, settings: Settings) -> Stewardship:
    """This process's part in stewarding; *learning* is not off."""
    rules = rules_of(settings, measure_set(settings))
    scribe = scribe_of(settings, rules, input_lineage=lineage_of(settings))
    return Stewardship(office, rules=rules, scribe=scribe)


def kafka_office(source: str, settings: Settings) -> KafkaOffice:
    """What stewards share on the brokers of a source."""
    return KafkaOffice(
        connection_of(source, settings),
        group_id=settings.group_id,
        topic_prefix=settings.topic_prefix,
        session_timeout_ms=settings.session_timeout_ms,
    )


@contextlib.asynccontextmanager
async def stewarding(steward: Stewardship | None, stop: Callable[[], None]) -> AsyncIterator[None]:
    """A steward works meanwhile. If it ends by itself, *stop* is called, and its error raised."""
    if steward is None:
        yield
        return
    running = asyncio.create_task(steward.run(), name="steward")
    running.add_done_callback(lambda _: stop())
    try:
        yield
    finally:
        steward.stop()
        await running


def require_learning(settings: Settings) -> None:
    """Raises UsageError if nothing is to be learned."""
    if not settings.learns:
        raise UsageError(
            "learning is off, so there is nothing to steward. Set learning to propose or auto, "
            "for the workers too."
        )
