"""Foreign records to decoded columns, without a broker: CPU microseconds per record.

`python -m benchmarks.mapping --records 2000 --rounds 9`. Rankings of about 3 kB with 20 rows, and
clicks; beside them the same as canonical messages.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.pipeline import SKEW_MS
from evaluator.core.types.records import Log
from evaluator.mapping.document import read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import Record
from evaluator.mapping.stage import Stage
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records

MAPPING = """
[rankings]
envelope = "cloudevents"
where = { type = ["impression.v2"] }
trace_id = ["data.request.session", "key:"]
node_id = "data.request.query"
timestamp_ms = { path = "data.served_at", unit = "iso" }
model = { const = "shop" }
variant = "data.model.ab"
query = "data.text"
segments = { locale = "data.locale", device = "data.client.kind" }
[rankings.rows]
each = "data.results"
candidate_id = "product"
rank = { path = "position", add = 1 }
score = "relevance"
features = { rel = "f.rel", hist = "f.hist" }
exposed = "seen"
[judgments]
trace_id = "session"
node_id = "query"
timestamp_ms = "at"
judgment_id = "id"
source = { const = "click" }
candidate_id = "product"
grade = { path = "action", table = { click = 1, buy = 3 } }
"""
NOW_MS = 1_769_846_400_000


def main() -> None:
    """Median of the rounds, which are interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    logs: dict[Log, Callable[[int], dict[str, Any]]] = {"rankings": impression, "judgments": click}
    rows = []
    for log, mapping in read_document(MAPPING, "mapping").logs.items():
        foreign = [json.dumps(logs[log](n)).encode() for n in range(options.records)]
        mapped = messages_of(mapping)
        messages = [message for value in foreign for message in found(mapped(Record(value)))]
        stage = Stage(mapping, max_future_skew_ms=SKEW_MS)
        decode: Any = decode_rankings if log == "rankings" else decode_judgments
        decode = partial(decode, max_future_skew_ms=SKEW_MS)
        steps: dict[str, Callable[[], object]] = {
            "foreign to canonical bytes": lambda m=mapped, f=foreign: [m(Record(v)) for v in f],  # type: ignore[misc] # bound in the loop
            "foreign to columns": partial(stage.decoded, records(log, foreign), decode),
            "canonical to columns": partial(decode, records(log, messages)),
        }
        watch: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                begun = time.process_time()
                step()
                watch[name].append((time.process_time() - begun) / len(foreign) * 1e6)
        size = f"{sum(map(len, foreign)) / len(foreign):.0f}"
        rows += [[log, size, n, f"{statistics.median(each):.1f}"] for n, each in watch.items()]
    print(format_table(["log", "bytes", "step", "us"], rows, numbers=[1, 3]))


def found(outcome: Any) -> list[bytes]:
    """The messages. Raises AssertionError if there are none."""
    if not isinstance(outcome, list):
        raise AssertionError(str(outcome))
    return outcome


def records(log: Log, values: list[bytes]) -> Records:
    """Values as records with keys and timestamps."""
    n = len(values)
    return Records.of(log, 0, range(n), [b"key"] * n, values, [NOW_MS] * n, n)


def impression(number: int) -> dict[str, Any]:
    """A foreign ranking."""
    rows = [
        {
            "product": f"product-{n}",
            "position": n,
            "relevance": (number * 31 + n * 17) % 1_000 / 1_000,
            "title": f"Number {n} of the shop",
            "f": {"rel": n / 32, "hist": (number + n) % 7 / 7},
            "seen": n < 5,
        }
        for n in range(20)
    ]
    request = {"session": f"s-{number}", "query": number, "agent": "Mozilla/5.0 (X11; Linux)"}
    return {
        "specversion": "1.0",
        "type": "impression.v2",
        "source": "/search",
        "data": {
            "served_at": "2026-01-31T08:00:00.123Z",
            "request": request,
            "model": {"ab": "B"},
            "text": "red shoes",
            "locale": "de",
            "client": {"kind": "phone"},
            "results": rows,
        },
    }


def click(number: int) -> dict[str, Any]:
    """A foreign judgment."""
    of_click = {"id": f"c-{number}", "action": "click", "product": "product-3", "at": NOW_MS}
    return {**of_click, "session": f"s-{number}", "query": number, "referrer": "/search?q=red"}


if __name__ == "__main__":
    main()
