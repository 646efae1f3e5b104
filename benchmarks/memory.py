"""Memory of an open query, by candidates, rankers and whether it was judged.

`python -m benchmarks.memory`: every row in a process of its own, a minute and a half altogether.
`--released`: memory of a process after its queries have expired, and after its heap was trimmed.
"""

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.meter import peak_mb, resident_mb
from benchmarks.pipeline import make_engine, one_batch
from benchmarks.world import START_MS, Message
from evaluator.core.engine.engine import Engine
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.worker.monitoring import trim_heap

# The formula of docs/capacity.md: bytes of memory of an open query.
QUERY_BYTES = 380
JUDGED_BYTES = 200
CODE_BYTES, RANK_BYTES = 2, 1
# Of every candidate (4 if a task has had 32,768 ids), and of it for every ranker (2 beyond 255).
SLACK = 1.25

BATCH = 5_000
N_GRADES = 5
SKEW_MS = 300_000
CASES = [(5, 1, True), (20, 1, True), (20, 2, True), (20, 2, False), (100, 2, True), (500, 2, True)]


def formula(n_candidates: float, n_rankers: int, judged: float) -> float:
    """Bytes of an open query that is judged with the chance *judged*, from above."""
    rank_bytes = RANK_BYTES * (1 if n_candidates <= 255 else 2)
    candidates = n_candidates * (CODE_BYTES + rank_bytes * n_rankers)
    return QUERY_BYTES + JUDGED_BYTES * judged + SLACK * candidates


def rankings(n: int, n_candidates: int, n_rankers: int) -> Iterator[Message]:
    """*n* queries of one hour, each of its own trace, out of 1,000 candidates."""
    scores = ",".join(str(n_candidates - i) for i in range(n_candidates))
    others = "".join(f',"scorers":{{"bm25":[{scores}]}}' for _ in range(n_rankers - 1))
    for i in range(n):
        at = START_MS + i * 3_600_000 // n
        ids = ",".join(f'"tool-{(i * 7 + j) % 1000}"' for j in range(n_candidates))
        value = (
            f'{{"schema_version":1,"trace_id":"{i:032x}","node_id":"plan/{i % 7}",'
            f'"timestamp_ms":{at},"model":"m","variant":"prod",'
            f'"query":"find a flight, request {i}","candidate_ids":[{ids}],'
            f'"scores":[{scores}]{others}}}'
        )
        yield Message(at, b"", value.encode())


def judgments(n: int) -> Iterator[Message]:
    """One judgment of each, of its first candidates."""
    for i in range(n):
        at = START_MS + i * 3_600_000 // n
        grades = ",".join(f'"tool-{(i * 7 + j) % 1000}":{j % 3}' for j in range(N_GRADES))
        value = (
            f'{{"schema_version":1,"trace_id":"{i:032x}","node_id":"plan/{i % 7}",'
            f'"timestamp_ms":{at},"source":"human","judgment_id":"j-{i}","grades":{{{grades}}}}}'
        )
        yield Message(at, b"", value.encode())


def fill(n: int, n_candidates: int, n_rankers: int, *, judged: bool) -> Engine:
    """An engine with *n* open queries; messages and outputs are discarded."""
    engine = make_engine()
    ranked, graded = rankings(n, n_candidates, n_rankers), judgments(n)
    for first in range(0, n, BATCH):
        end = min(first + BATCH, n)
        part = [next(ranked) for _ in range(first, end)]
        records = one_batch(part, "rankings", 0, len(part))
        engine.receive(decode_rankings(records, max_future_skew_ms=SKEW_MS), None)
        if judged:
            part = [next(graded) for _ in range(first, end)]
            records = one_batch(part, "judgments", 0, len(part))
            engine.receive(None, decode_judgments(records, max_future_skew_ms=SKEW_MS))
    return engine


def measure(n: int, n_candidates: int, n_rankers: int, judged: bool) -> float:
    """Bytes per open query: growth of the peak over that of a few batches."""
    fill(4 * BATCH, n_candidates, n_rankers, judged=judged)
    gc.collect()
    before = peak_mb()
    engine = fill(n, n_candidates, n_rankers, judged=judged)
    assert engine.n_open == n
    return (peak_mb() - before) * 2**20 / (n - 4 * BATCH)


def released(n: int) -> list[tuple[str, float]]:
    """Resident MiB with a few batches, with *n* queries, when they have expired, when trimmed."""
    fill(4 * BATCH, 20, 2, judged=True)
    gc.collect()
    found = [("before", resident_mb())]
    engine = fill(n, 20, 2, judged=True)
    found.append((f"{engine.n_open:,} held", resident_mb()))
    for days in (3, 6):  # the first two release the keys of these queries, then those of the first
        at = START_MS + days * 86_400_000
        for log, read, members in (
            ("rankings", decode_rankings, '"candidate_ids":["a"],"scores":[1]'),
            ("judgments", decode_judgments, '"grades":{"a":1}'),
        ):
            value = (
                f'{{"schema_version":1,"trace_id":"last-{days}","node_id":"n",'
                f'"timestamp_ms":{at},{members}}}'
            )
            records = one_batch([Message(at, b"", value.encode())], log, 0, 1)
            columns = read(records, max_future_skew_ms=SKEW_MS)
            engine.receive(*((columns, None) if log == "rankings" else (None, columns)))
    gc.collect()
    found.append((f"{engine.n_open:,} held", resident_mb()))
    trim_heap()
    return [*found, ("trimmed", resident_mb())]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--queries", type=int, default=200_000)
    parser.add_argument("--one", type=json.loads, help="[candidates, rankers, judged]: one case")
    parser.add_argument("--released", action="store_true")
    arguments = parser.parse_args()
    if arguments.released:
        rows = [[name, f"{mb:,.0f}"] for name, mb in released(arguments.queries)]
        print(format_table(["", "MiB"], rows, numbers=[1]))
        return
    if arguments.one:
        print(measure(arguments.queries, *arguments.one))
        return
    rows = []
    for case in CASES:
        n = arguments.queries if case[0] <= 100 else arguments.queries // 4
        command = [sys.executable, "-m", "benchmarks.memory", f"--queries={n}"]
        command.append(f"--one={json.dumps(case)}")
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        n_candidates, n_rankers, judged = case
        figures = [f"{value:,.0f}" for value in (float(found), formula(*case))]
        rows.append([str(n_candidates), str(n_rankers), "yes" if judged else "no", *figures])
    heads = ["candidates", "rankers", "judged", "bytes", "formula"]
    print(format_table(heads, rows, numbers=[0, 1, 3, 4]))


if __name__ == "__main__":
    main()
