"""CPU time, memory and bytes of one task of a backfill, without Spark.

`python -m benchmarks.backfill --pairs 100000`: `evaluator.backfill.run_task` on pairs of the usual
world in the order of time, in Arrow batches of 5,000 rows: half of the pairs, all, and all without
the tables of queries. A run is a process of its own.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from benchmarks.world import make_world
from evaluator.backfill import QUERIES, SUMMARIES, result_schema, run_task
from evaluator.config import Settings
from evaluator.tables import format_table

ROWS = 5_000


def write_records(n_pairs: int, path: Path) -> int:
    """Both logs as raw records in the order of time; returns the bytes of keys and values."""
    world = make_world(n_pairs)
    rows = sorted(
        (message.timestamp_ms, log, offset, message.key, message.value)
        for log, messages in (("judgments", world.judgments), ("rankings", world.rankings))
        for offset, message in enumerate(messages)
    )
    times, logs, offsets, keys, values = zip(*rows, strict=True)
    columns = {"log": logs, "offset": offsets, "timestamp_ms": times}
    raw = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    parquet.write_table(pa.table({**columns, **raw}), path, compression="zstd")
    return sum(map(len, keys)) + sum(map(len, values))


def evaluate(path: Path, out: Path, queries: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds until the results are computed, then until they are written, and the peak RSS."""
    batches = parquet.ParquetFile(path).iter_batches(batch_size=ROWS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    start, evaluated, settled = time.process_time(), 0.0, 0
    with parquet.ParquetWriter(out, result_schema(), compression="zstd") as writer:
        for batch in run_task(0, batches, Settings(), queries=queries):
            evaluated = evaluated or time.process_time() - start
            if batch.column("table")[0].as_py() == SUMMARIES:
                summary = json.loads(batch.column("line")[0].as_py())
                settled = summary["totals"]["queries"]["settled"]
            writer.write_batch(batch)
    return {
        "settled": settled,
        "evaluated": evaluated,
        "written": time.process_time() - start - evaluated,
        "rss_before": before,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    n_pairs = parser.parse_args().pairs
    rows = []
    context = multiprocessing.get_context("spawn")  # so that memory is that of one run
    for n, queries in ((n_pairs // 2, QUERIES), (n_pairs, QUERIES), (n_pairs, ())):
        with tempfile.TemporaryDirectory() as place:
            path, out = Path(place) / "in.parquet", Path(place) / "out.parquet"
            with context.Pool(1, maxtasksperchild=1) as pool:
                n_bytes = pool.apply(write_records, (n, path))
                found = pool.apply(evaluate, (path, out, queries))
            if found["settled"] != n:
                raise SystemExit(f"{found['settled']} of {n} queries settled")
            seconds = found["evaluated"] + found["written"]
            rows.append(
                (
                    f"{n:,}",
                    "yes" if queries else "no",
                    f"{n_bytes / n:,.0f}",
                    f"{path.stat().st_size / n:,.0f}",
                    f"{out.stat().st_size / n:,.0f}",
                    f"{found['evaluated'] / n * 1e6:.1f}",
                    f"{found['written'] / n * 1e6:.1f}",
                    f"{seconds / n_bytes * 1e12 / 3600:.1f}",
                    f"{found['rss_before'] / 2**20:.0f}",
                    f"{found['rss'] / 2**20:.0f}",
                )
            )
    header = ("pairs", "tables", "bytes", "stored", "results", "us", "us of tables", "CPU h per TB")
    print(format_table((*header, "MiB before", "MiB"), rows))


if __name__ == "__main__":
    main()
