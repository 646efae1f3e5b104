"""Disk space of an open query: `python -m benchmarks.disk`, half a minute.

Every row is a store of its own, closed after the last batch.
"""

import tempfile
from itertools import chain
from pathlib import Path

from benchmarks.memory import BATCH, SKEW_MS, judgments, rankings
from benchmarks.pipeline import make_engine, one_batch
from benchmarks.world import Message, make_world
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.worker.task_state import TaskState

N = 50_000
CASES = [(5, True), (20, True), (20, False), (100, True)]


def measure(ranked: list[Message], graded: list[Message]) -> tuple[int, int]:
    """Bytes of a query: of its messages, and of its store."""
    n = len(ranked)
    with tempfile.TemporaryDirectory() as path:
        directory = RocksStateDirectory(Path(path))
        state = TaskState(directory.open(0), task=0)
        engine = make_engine(state)
        for first in range(0, n, BATCH):
            records = one_batch(ranked, "rankings", first, min(first + BATCH, n))
            engine.receive(decode_rankings(records, max_future_skew_ms=SKEW_MS), None)
            if graded:
                records = one_batch(graded, "judgments", first, min(first + BATCH, n))
                engine.receive(None, decode_judgments(records, max_future_skew_ms=SKEW_MS))
            state.commit(engine)
        held = engine.n_open
        state.close()
        n_bytes = sum(file.stat().st_size for file in Path(path).rglob("*.sst"))
    size = sum(len(message.value) for message in chain(ranked, graded))
    return size // held, n_bytes // held


def main() -> None:
    """Prints the table of docs/capacity.md."""
    rows = []
    for n_candidates, judged in CASES:
        graded = list(judgments(N)) if judged else []
        found = measure(list(rankings(N, n_candidates, 1)), graded)
        rows.append(
            [str(n_candidates), "yes" if judged else "no", *(f"{each:,}" for each in found)]
        )
    world = make_world(N)
    found = measure(world.rankings, world.judgments)
    rows.append(["benchmark", "yes", *(f"{each:,}" for each in found)])
    print(format_table(["candidates", "judged", "messages", "disk"], rows))


if __name__ == "__main__":
    main()
