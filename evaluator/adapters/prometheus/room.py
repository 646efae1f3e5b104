"""What there is room for, as Prometheus sees it."""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from evaluator.adapters.prometheus.made import family
from evaluator.exposition.series import DISK_FREE, MEMORY_LIMIT, STATE_LIMIT


class Room(NamedTuple):
    """Bytes; None where there is no limit, or none to be seen."""

    memory_limit: int | None = None
    disk_free: int | None = None
    state_limit: int | None = None


def room_families(room: Room) -> Iterator[Metric]:
    """A family for each, without a sample where there is no figure."""
    for spec, figure in zip((MEMORY_LIMIT, DISK_FREE, STATE_LIMIT), room, strict=True):
        # No disk is so large that the figure would mean more, and no float holds every setting.
        yield family(spec, [] if figure is None else [((), min(figure, 1 << 63))])
