"""The weights of a replay equal those of a live leader."""

import json
from dataclasses import replace
from random import Random

import pytest

from evaluator.core.learning.learner import Learner
from evaluator.core.measures import MeasureSet
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.rules import Rules
from evaluator.core.promotion.gate import GateRules
from evaluator.replay.online_learning import OnlineLearning
from evaluator.wire.outputs.settled import decode_settled
from evaluator.wire.weights.leader_state import RecordWriter
from evaluator.wire.weights.weights_record import Weights
from tests.oracle.messages import Raw
from tests.replay.running import put, replayed, rows
from tests.worker.harness import WorkerHarness
from tests.worker.traffic import LONG_AGO_MS, SETTINGS, Traffic

N_TASKS = 2
N_QUERIES = 600
SLOW = pytest.mark.slow
TRUTH = (1.0, -2.0)


def rules():
    return Rules(
        mode="auto",
        learner=Learner(scale="within_query"),
        batch_queries=2,
        gate=GateRules("mrr", block_ms=5_000, min_traces=30, min_age_ms=0, cool_down_ms=0),
        offline_ranking=OfflineRanking(MeasureSet.parse(["mrr", "ndcg@10"])),
        learning_interval_ms=60_000,
    )


BOTH = ["features", pytest.param("described", marks=SLOW)]


@pytest.fixture(scope="module")
def traffic(request):
    """Messages of two partitions, a query a second in turn; the best of four is relevant."""
    random = Random(4)
    described = getattr(request, "param", "features") == "described"
    logs = [([], []) for _ in range(N_TASKS)]
    for i in range(N_QUERIES):
        at_ms = LONG_AGO_MS + 1_000 * i
        features = [[round(random.gauss(0, 1), 3) for _ in TRUTH] for _ in range(4)]
        worth = [sum(w * x for w, x in zip(TRUTH, row, strict=True)) for row in features]
        common = {
            "schema_version": 1, "trace_id": f"t-{i}", "node_id": "n", "timestamp_ms": at_ms,
        }  # fmt: skip
        ranking = {
            **common, "candidate_ids": ["a", "b", "c", "d"], "scores": [4, 3, 2, 1],
            "features": features, "model": "m",
        }  # fmt: skip
        best = "abcd"[worth.index(max(worth))]
        if described:
            del ranking["features"]
            types = random.sample("abcd", 4)
            best = "abcd"[types.index("a")]
            texts = [f"query {i % 9}" if kind == "a" else f"text {i % 3}" for kind in types]
            graphs = [
                {"type": kind, "text": text, "nodes": [0] * (i % 4)}
                for kind, text in zip(types, texts, strict=True)
            ]
            ranking |= {"query": f"query {i % 9}", "graphs": graphs}
        judgment = {**common, "grades": {best: 2 if described else 1}, "source": "human"}
        for log, message in zip(logs[i % N_TASKS], (ranking, judgment), strict=True):
            log.append(Raw(0, at_ms, json.dumps(message).encode()))
    return [Traffic(*map(tuple, log)) for log in logs]


@pytest.fixture
def directory(traffic, tmp_path):
    return written(traffic, tmp_path / "in")


def written(traffic, folder):
    for task, part in enumerate(traffic):
        put(folder, f"rankings-{task}.ndjson", [raw.value for raw in part.rankings])
        put(folder, f"judgments-{task}.ndjson", [raw.value for raw in part.judgments])
    return folder


MEANING = {
    "retention_ms": SETTINGS.retention_ms,
    "maturity_ms": SETTINGS.maturity_ms,
    "early_ms": SETTINGS.early_ms,
    "remember_ms": SETTINGS.remember_ms,
    "out_of_orderness_ms": SETTINGS.out_of_orderness_ms,
    "window_ms": SETTINGS.window_ms,
    "measures": ("mrr", "ndcg@10"),
    "learns": True,
}


async def weights_of(directory, out, *, at_end="settle", **options):
    return await replayed(
        directory,
        out,
        settings={**MEANING, "at_end": at_end},
        online_learning=OnlineLearning(rules(), RecordWriter("l", {"loss": "softmax"})),
        **options,
    )


@pytest.mark.parametrize("traffic", BOTH, indirect=True)
async def test_a_replay_writes_the_weights_that_it_learned_and_tried(directory, tmp_path):
    files = await weights_of(directory, tmp_path / "out")
    published = rows(files, "weights.ndjson")
    assert [each["status"] for each in published][:2] == ["challenger", "promoted"]
    assert [each["version"] for each in published] == list(range(1, len(published) + 1))
    for each in published:
        Weights.model_validate(each)
    if "success_rates" in published[1]:
        assert min(published[1]["weights"][:2]) > 0  # phi_rel and phi_hist
        assert [row[1] for row in published[1]["success_rates"]["successes"]] == ["a"]
    else:
        a, b = published[1]["weights"]
        assert a > 0 > b
    manifest = json.loads(files["manifest.json"])
    assert manifest["settings"]["learning"] == {"loss": "softmax"}
    assert manifest["counts"]["weights"] == len(published)


@pytest.mark.slow
async def test_batch_size_does_not_change_weights(traffic, tmp_path):
    directory = written([part.part(0, 0.6) for part in traffic], tmp_path / "in")
    once = await weights_of(directory, tmp_path / "once")
    assert len(rows(once, "weights.ndjson")) > 1
    for n in (1, 97):
        assert await weights_of(directory, tmp_path / f"by {n}", max_poll_records=n) == once


async def test_a_replay_without_a_leader_has_no_weights(directory, tmp_path):
    files = await replayed(directory, tmp_path / "out", settings={**MEANING, "learns": False})
    assert "weights.ndjson" not in files
    assert "learning" not in json.loads(files["manifest.json"])["settings"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "seed"),
    [
        ("features", 1),
        ("features", 2),
        ("described", 3),
    ],
    indirect=["traffic"],
)
async def test_a_live_leader_publishes_the_weights_of_a_replay(traffic, directory, tmp_path, seed):
    """Settled queries of workers so far, read in any order, against replays of their inputs."""
    settings = replace(SETTINGS, measures=("mrr", "ndcg@10"))
    harness = WorkerHarness(n_tasks=N_TASKS, learns=True, settings=settings)
    harness.append(dict(enumerate(traffic)))
    await harness.until_end(max_poll_records=40)
    random, leader = Random(seed), OnlineLearner(rules(), n_tasks=N_TASKS)
    record_writer, live = RecordWriter("l", {"loss": "softmax"}), []
    left = [list(harness.broker.output("settled", task)) for task in range(N_TASKS)]
    while any(left):
        task = random.choice([task for task, part in enumerate(left) if part])
        n = random.randint(1, 30)
        batch, left[task] = left[task][:n], left[task][n:]
        records = [decode_settled(each.value, rules().offline_ranking.measures) for each in batch]
        for interval in leader.receive(records):
            live += [
                record.value for topic, record in record_writer.records(interval) if "log" in topic
            ]
    held = await weights_of(directory, tmp_path / "hold", at_end="hold")
    assert len(live) >= 2
    assert held["weights.ndjson"].splitlines() == live
    whole = await weights_of(directory, tmp_path / "settle")
    assert whole["weights.ndjson"].splitlines()[: len(live)] == live
