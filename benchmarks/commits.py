"""The cost of a commit into the store: CPU microseconds per pair, compared with other versions.

`python -m benchmarks.commits [--pairs 5000] [OTHER ...]`: OTHER are further clones with a `.venv`.
An engine with its store on a disk in one process for each version; they take turns. The thread of
the engine and those of RocksDB are measured separately.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import open_queries
from benchmarks.pipeline import GC_THRESHOLD

RETENTION_MS = 86_400_000
MEMORY_TIER_BYTES = 2 << 30
WARM_UP = 3


def serve(n_pairs: int) -> None:
    """Measures one commit of *n_pairs* for each line of the standard input."""
    gc.set_threshold(*GC_THRESHOLD)
    open_queries.COMMIT_EVERY = sys.maxsize  # type: ignore[misc]  # commits are made here
    chance = np.random.default_rng(1)
    recent = open_queries.Recent(chance, n_pairs)
    with tempfile.TemporaryDirectory(prefix="commits-") as scratch:
        traffic = open_queries.Traffic(1.0)
        task = open_queries.Task(Path(scratch), RETENTION_MS, MEMORY_TIER_BYTES, traffic)
        for at, _ in enumerate(sys.stdin):
            process, began = time.process_time(), time.thread_time()
            task.take(n_pairs, lambda end: recent.some(n_pairs, end))
            taken = time.thread_time()
            task.commit()
            ended = time.thread_time()
            others = time.process_time() - process - (ended - began)
            if at >= WARM_UP:
                found = [1e6 * spent / n_pairs for spent in (ended - taken, others)]
                print(json.dumps(found), flush=True)
        task.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5_000, help="of each commit")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("others", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        serve(arguments.pairs)
        return
    versions = [Path.cwd(), *arguments.others]
    command = [__file__, "--child", "--pairs", str(arguments.pairs)]
    children = [
        subprocess.Popen(
            [folder / ".venv/bin/python", *command],
            cwd=folder,
            env={"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for folder in versions
    ]
    spent: list[list[list[float]]] = [[] for _ in versions]
    for number in range(arguments.rounds + WARM_UP):
        for child, costs in zip(children, spent, strict=True):
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            if number >= WARM_UP:
                costs.append(json.loads(child.stdout.readline()))
    for folder, child, costs in zip(versions, children, spent, strict=True):
        child.communicate()
        commits, others = zip(*costs, strict=True)
        print(
            f"{folder}: {statistics.median(commits):.2f} us per pair in the commit, "
            f"{statistics.mean(others):.2f} in the threads of RocksDB"
        )


if __name__ == "__main__":
    main()
