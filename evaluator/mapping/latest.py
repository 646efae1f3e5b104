"""The latest schemas of the topics of a mapping, compared with it before a record names one."""

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import structlog

from evaluator.core.types.records import Log
from evaluator.mapping.formats import unfit
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.schemas import Registry, SchemaUnusable
from evaluator.ports import Finding, RegistryUnavailable

SECONDS: Final = 10.0
"""Time of a comparison, with all requests for it."""

log = structlog.get_logger(__name__)


async def comparisons(
    registry: Registry, mappings: Collection[LogMapping], topics: Mapping[Log, str]
) -> list[tuple[str, Finding]]:
    """Compares the latest schema of each topic with framed records with its mapping, by subject.

    The subject is that of TopicNameStrategy, the default of serializers.
    """
    framed = [each for each in mappings if each.registry is not None]
    subjects = [f"{topics[each.log]}-value" for each in framed]
    findings = await asyncio.gather(*map(partial(_compared, registry), framed, subjects))
    return list(zip(subjects, findings, strict=True))


async def _compared(registry: Registry, mapping: LogMapping, subject: str) -> Finding:
    try:
        async with asyncio.timeout(SECONDS):
            answer = await registry.latest(subject)
    except (RegistryUnavailable, TimeoutError) as error:
        what = str(error) or f"{registry.url} has not answered in {SECONDS:.0f} s."
        what = f"The schema of {subject} is not compared with the mapping: {what}"
        return Finding("warning", what, "It is compared when a record names it.")
    if answer is None:
        what = f"The registry has no subject {subject}: schemas are compared as records name them."
        return Finding("ok", what)
    try:
        why = answer.refused or unfit(answer, mapping)
    except SchemaUnusable as unusable:
        why = str(unusable)
    if why is None:
        return Finding("ok", f"The latest schema of {subject} fits the mapping.")
    what = f"The latest schema of {subject} does not fit the mapping: {why}."
    advice = "Correct the path in the mapping, or the schema: its records become dead letters."
    return Finding("error", what, advice)


def log_comparisons(found: Collection[tuple[str, Finding]]) -> None:
    """Logs schemas that do not fit, and those that are not compared."""
    for subject, each in found:
        if each.severity == "error":
            log.error("schema_does_not_fit", subject=subject, error=each.what)
        elif each.severity == "warning":
            log.warning("schema_not_compared", subject=subject, error=each.what)
