"""How the clocks of this machine and of the logs stand against the broker's."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from evaluator.adapters.prometheus.made import family
from evaluator.core.types.records import Snapshot
from evaluator.exposition.series import CLOCK_SKEW, INPUT_AHEAD


def clock_families(snapshot: Snapshot) -> Iterator[Metric]:
    """The families of clocks, in the order of SPECS."""
    skew_ms = snapshot.skew_ms
    yield family(CLOCK_SKEW, [] if skew_ms is None else [((), skew_ms / 1000)])
    ahead = snapshot.clocks_ahead_ms()
    yield family(INPUT_AHEAD, (((log, str(task)), ms / 1000) for (log, task), ms in ahead.items()))
