"""Time for which a scrape blocks the loop, with the largest number of quality series.

`python -m benchmarks.scrapes`: the loop of a process turns without a break, and measures its
longest turn while the text of a scrape is written: in the loop, and by the thread that a worker
has. A turn is measured in CPU time of the whole process, which other programs do not change.
"""

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable

from evaluator.adapters.prometheus import exposition
from evaluator.cli.live import tune_interpreter
from evaluator.cli.views import ProcessViews
from evaluator.config import Settings
from evaluator.core.measures.exact_sums import Totals
from evaluator.core.types.records import SERVED, VALUE_BOUNDS, Stratum
from evaluator.core.types.tally import GroupedTally, Path
from evaluator.exposition.snapshot import Snapshot, TaskView

N_PAIRS = 400


class Views(ProcessViews):
    """A process whose task has queries of many pairs of model and variant, and more of each."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(None, settings)
        self._totals = Totals(settings.measures)
        self._n = len(settings.measures)
        self._histograms = settings.histogram_measures
        self.settle()

    def settle(self) -> None:
        """One more query of each pair."""
        buckets: dict[Path, int] = {}
        for number in range(N_PAIRS):
            stratum = Stratum(f"model-{number}", "prod", (SERVED,))
            totals = self._totals.of(stratum)
            for sums in (totals.running, totals.settled, totals.settled_squares):
                sums.add(1, [number] * self._n)
            totals.settled_judged += 1
            for measure in self._histograms:
                for bucket in range(len(VALUE_BOUNDS)):
                    buckets["bucket", *stratum[:2], SERVED, measure, str(bucket)] = 1
        groups = {**GroupedTally.of(buckets).groups, **self._totals.groups()[0]}
        tally = GroupedTally(groups)
        self._snapshot = Snapshot((TaskView(0, {}, {}, {}, None, 0, 0, 0, False, tally),), tally)

    def snapshot(self) -> Snapshot:
        """All pairs."""
        return self._snapshot

    async def in_the_loop(self, accept: str) -> tuple[bytes, str]:
        """A scrape without a thread."""
        return exposition(self._registry, accept)


async def longest_turn(scrape: Callable[[str], Awaitable[tuple[bytes, str]]] | None) -> float:
    """CPU seconds of the longest turn of the loop during one scrape, or without one."""
    scraping = asyncio.ensure_future(asyncio.sleep(0.05) if scrape is None else scrape(""))
    longest, before = 0.0, time.process_time()
    while not scraping.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    return longest


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrapes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    settings = Settings(histogram_measures=("mrr",))
    views = Views(settings)
    body, _ = await views.metrics("")
    gc.collect()
    gc.freeze()  # as a command does
    tune_interpreter()
    n_series = sum(line.startswith(b"evaluator_") for line in body.splitlines())
    print(f"{n_series} series, {len(body) / 1e6:.2f} MB; longest turn of the loop, ms")
    for name, scrape in (
        ("without a scrape", None),
        ("text written in the loop", views.in_the_loop),
        ("text written by a thread", views.metrics),
    ):
        turns = []
        for _ in range(rounds):
            views.settle()
            turns.append(await longest_turn(scrape) * 1000)
        p99 = sorted(turns)[int(0.99 * len(turns))]
        print(f"{name}: median {statistics.median(turns):.1f}, p99 {p99:.1f}")


if __name__ == "__main__":
    asyncio.run(main())
