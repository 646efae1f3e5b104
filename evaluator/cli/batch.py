"""`replay`: a pinned range into files."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from evaluator.adapters.directory import ResultDirectory
from evaluator.adapters.files import read_file
from evaluator.cli.ranges import default_end, meaning_of, moments_of, source_of
from evaluator.cli.wiring import topic_names
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.ports import SourceUnusable
from evaluator.replay.run import DEAD_LETTERS, EVALUATIONS, ReplayResult
from evaluator.replay.run import replay as run_replay
from evaluator.replay.weighing import Weighing
from evaluator.wire.weights import Weights, WeightsRefused, read_weights


def replay(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator replay`."""
    from_ms, to_ms = moments_of(asked)
    weights = None if asked.weights is None else _weights(asked.weights)
    weighing = None if weights is None else Weighing(weights.weights, weights.feature_names)
    source, live = source_of(asked, settings, features=weights is not None)
    meaning = replace(
        meaning_of(settings, measure_set(settings), at_end=asked.at_end or default_end(live)),
        weights=None if weights is None else weights.checksum,
    )
    result = asyncio.run(
        run_replay(
            source,
            ResultDirectory(asked.out, force=asked.force),
            meaning,
            topic_names=topic_names(settings),
            from_ms=from_ms,
            to_ms=to_ms,
            max_poll_records=settings.max_poll_records,
            weighing=weighing,
        )
    )
    print(summary(result, asked.out))
    if weighing is not None and (warning := weighing.warning()):
        print(f"evaluator: warning: {warning}.", file=sys.stderr)
    if not any(_n_read(result).values()):
        print(
            "evaluator: warning: nothing was in the range, the results are empty.", file=sys.stderr
        )
    return 0


def _weights(path: Path) -> Weights:
    """Raises SourceUnusable."""
    try:
        return read_weights(read_file(path))
    except WeightsRefused as error:
        raise SourceUnusable(f"{path}: {error}") from None


def summary(result: ReplayResult, directory: Path) -> str:
    """What a replay read and found and where its files are, in one line."""
    n_read = _n_read(result)
    queries = cast("Mapping[str, int]", result.totals["queries"])
    return (
        f"read {n_read['rankings']:,} rankings and {n_read['judgments']:,} judgments; "
        f"{queries['settled']:,} queries settled ({queries['settled_judged']:,} judged), "
        f"{result.files[EVALUATIONS].rows:,} evaluations, "
        f"{result.files[DEAD_LETTERS].rows:,} dead letters; files in {directory}"
    )


def _n_read(result: ReplayResult) -> dict[str, int]:
    """Records of the range, per log."""
    ledger = cast("Mapping[str, Mapping[str, int]]", result.totals["ledger"])
    return {log: counts["read"] for log, counts in ledger.items()}
