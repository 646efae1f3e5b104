"""Learning from topics: the weights of the same files, and their values in a replay."""

import asyncio
import json

import pytest

from evaluator.cli import main
from tests.contract.backends import KafkaBackend
from tests.replay import running

pytestmark = pytest.mark.kafka
N_GROUPS = 40
SETTINGS = ["--set=maturity_ms=0", "--set=out_of_orderness_ms=0", "--set=scale=within_query"]


@pytest.fixture
async def backend(kafka, topic_prefix):
    backend = await KafkaBackend.open(kafka, topic_prefix, {"rankings": 2, "judgments": 2})
    yield backend
    await backend.close()


def messages(partition):
    """Rankings and judgments of one partition, and a later pair that does not mature."""
    rankings, judgments = [], []
    for number in range(partition, 2 * N_GROUPS, 2):
        about = {"trace_id": f"t{number}", "timestamp_ms": 100 * number}
        features = [
            [(number * 7 + place * 5) % 11 / 8, place * number % 5 / 4] for place in (0, 1, 2)
        ]
        best = max(range(3), key=lambda place, rows=features: rows[place][0] - rows[place][1])
        grades = {f"c{place}": float(place == best) for place in range(3)}
        rankings.append(
            running.ranking(
                **about,
                ids=list(grades),
                scores=[3, 2, 1],
                features=features,
                feature_names=["near", "far"],
            )
        )
        judgments.append(running.judgment(**about, grades=grades))
    rankings.append(running.ranking(f"young{partition}", 100_000))
    judgments.append(running.judgment(f"young{partition}", 100_000))
    return {"rankings": rankings, "judgments": judgments}


async def test_topics_give_the_same_weights_as_files(backend, tmp_path):
    for partition in (0, 1):
        of_logs = messages(partition)
        for log, values in of_logs.items():
            await backend.append(log, partition, values)
            running.put(tmp_path / "logs", f"{log}-{partition}.ndjson", values[:-1])
    of_topics = [
        f"--source=kafka://{backend.connection.bootstrap}",
        f"--set=topic_prefix={backend.prefix}",
    ]
    records = {}
    for name, source in (
        ("files", [f"--source=file://{tmp_path / 'logs'}"]),
        ("topics", of_topics),
    ):
        out = tmp_path / f"{name}.json"
        arguments = ["fit", *source, f"--out={out}", "--epochs=3", *SETTINGS]
        assert await asyncio.to_thread(main, arguments) == 0
        records[name] = json.loads(out.read_bytes())
    assert records["files"]["updates"] > N_GROUPS
    for member in ("weights", "scale", "updates", "history", "feature_names"):
        assert records["topics"][member] == records["files"][member]

    arguments = ["replay", *of_topics, *SETTINGS, f"--weights={tmp_path / 'topics.json'}"]
    assert await asyncio.to_thread(main, [*arguments, f"--out={tmp_path / 'out'}"]) == 0
    totals = json.loads((tmp_path / "out" / "totals.json").read_bytes())["totals"]
    mean = {
        row["ranker"]: row["mean"]
        for row in totals
        if (row["kind"], row["measure"]) == ("settled", "top1")
    }
    assert mean["weights"] > mean["served"] + 0.2
