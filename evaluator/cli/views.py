"""The views of a process for its HTTP server."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.adapters.http import limited, status_document
from evaluator.adapters.linux import free_bytes, memory_limit_bytes, resident_bytes
from evaluator.adapters.prometheus import EvaluatorCollector, exposition, registry_of
from evaluator.cli.wiring import (
    fingerprint_of,
    histograms_of,
    meaning_of,
    needed_input_ms,
    segment_rules_of,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.views import LeaderView
from evaluator.core.types.records import LOGS
from evaluator.core.types.tally import Tally
from evaluator.exposition.snapshot import Resources, Snapshot
from evaluator.ports import InputHealth
from evaluator.version import __version__
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT
from evaluator.worker import Worker

if TYPE_CHECKING:
    from evaluator.leader import Leader


class ProcessViews:
    """The views of a process for its HTTP server: of its worker, its leader, or both."""

    reads_queries = True

    def __init__(
        self,
        worker: Worker | None,
        settings: Settings,
        *,
        health: Callable[[], InputHealth] | None = None,
        leader: "Leader | None" = None,
        source: str | None = None,
    ) -> None:
        self._worker = worker
        self.process_leader = leader
        self._settings = settings
        self._measures = measure_set(settings)
        self._identity = {
            "meaning": meaning_of(settings),
            "fingerprint": fingerprint_of(settings),
            "source": source,
        }
        self._collector = EvaluatorCollector(
            self.snapshot,
            ready=lambda: not self.readiness(),
            version=__version__,
            histograms=histograms_of(settings),
            segments=segment_rules_of(settings),
            health=health or (lambda: InputHealth(needed_input_ms(settings))),
            leader=self.leader,
            resources=self.resources,
            links=(settings.runbook_url or "", (settings.dashboard_url or "").rstrip("/")),
        )
        self._registry = registry_of(self._collector)
        self._scrapes = ThreadPoolExecutor(1, "scrape")  # one at a time: they share their sums

    def snapshot(self) -> Snapshot:
        """All tasks as of their last commit."""
        return Snapshot() if self._worker is None else self._worker.snapshot

    def readiness(self) -> list[str]:
        """Reasons why the worker, or else the leader, is not ready."""
        process = self._worker or self.process_leader
        return [] if process is None else process.readiness()

    def alive(self) -> bool:
        """Whether the loop makes progress."""
        return self._worker is None or self._worker.alive()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape. A thread writes the text, which takes long."""
        loop, figures = asyncio.get_running_loop(), self._collector.read()
        return await loop.run_in_executor(self._scrapes, self._written, figures, accept)

    def _written(self, figures: Mapping[str, Any], accept: str) -> tuple[bytes, str]:
        self._collector.figures = figures
        return exposition(self._registry, accept)

    def status(self) -> Mapping[str, Any]:
        """The document of /status."""
        place = None if self._worker is None else self._worker.place
        return status_document(
            self.snapshot(),
            version=__version__,
            reasons=self.readiness(),
            now_ms=time.time_ns() // 1_000_000,
            settings=self._settings.as_shown(),
            identity={**self._identity, "place": place and place.as_document()},
            max_future_skew_ms=self._settings.max_future_skew_ms,
            leader=self.leader(),
        )

    def weights(self) -> Mapping[str, bytes] | None:
        """The live weights record of each model; None without learning."""
        live = {} if self.process_leader is None else self.process_leader.live
        return live if self._settings.learns else None

    def leader(self) -> LeaderView | None:
        """The state of learning and alarms; None if there is no leader and none will be loaded."""
        not_loaded = LeaderView() if self._worker and self._settings.leads else None
        return not_loaded if self.process_leader is None else self.process_leader.view

    def resources(self) -> Resources:
        """Use and limits of memory and disk; the disk is that of a worker."""
        settings, has_disk = self._settings, self._worker is not None
        return Resources(
            memory_limit_bytes(),
            free_bytes(Path(settings.state_dir)) if has_disk else None,
            settings.max_store_bytes or None if has_disk else None,
            resident_bytes(),
        )

    def totals(self) -> Mapping[str, Any]:
        """The document of /totals."""
        snapshot = self.snapshot()
        tally: Tally = {}
        for view in snapshot:
            add_tally(tally, view.tally)
        oversize = ("dead_letters", OVERSIZE_OUTPUT)  # counted by process, not by task
        tally[oversize] = snapshot.counters.get(oversize, 0)
        segments, n_rows = segment_rules_of(self._settings), len(self._measures.spellings)
        shown, n_pairs, n_levels = limited(segments.fold(tally), rows_per_ranker=n_rows)
        return {
            **totals_document(shown, self._measures, segments),
            **({"pairs_left_out": n_pairs} if n_pairs else {}),
            **({"levels_left_out": n_levels} if n_levels else {}),
            "tasks": [view.task for view in snapshot],
            "positions": {
                f"{log}-{view.task}": view.positions[log] for log in LOGS for view in snapshot
            },
        }
