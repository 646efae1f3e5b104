"""The records of `settled` of a whole worker while learning is on."""

import json
from collections.abc import Callable

import pytest

from evaluator.wire.outputs.output_models import Settled, WatermarkRecord
from tests.oracle.messages import Raw
from tests.repeats import first_quick
from tests.worker.harness import WorkerHarness
from tests.worker.traffic import LONG_AGO_MS, SETTINGS, Traffic

N_QUERIES = 40


def message(number: int, **more) -> Raw:
    at_ms = LONG_AGO_MS + 1_000 * number
    common = {"schema_version": 1, "trace_id": f"t-{number}", "node_id": "n", "timestamp_ms": at_ms}
    return Raw(0, at_ms, json.dumps({**common, **more}).encode())


def traffic(n_beats: int = 60) -> Traffic:
    """A query each second, then heartbeats."""
    rankings = [
        message(i, candidate_ids=["a", "b"], scores=[2, 1], features=[[0.5, i], [0.25, 1]])
        for i in range(N_QUERIES)
    ]
    judgments = [message(i, grades={"a": i % 3}, source="human") for i in range(N_QUERIES)]
    beats = [Raw(0, LONG_AGO_MS + 1_000 * (N_QUERIES + i), None) for i in range(n_beats)]
    return Traffic((*rankings, *beats), (*judgments, *beats))


async def settled_records(*, learns: bool, made: Callable[[], Traffic] = traffic) -> list[dict]:
    harness = WorkerHarness(n_tasks=1, learns=learns)
    harness.append({0: made()})
    await harness.until_end(max_poll_records=7)
    return [json.loads(record.value) for record in harness.broker.output("settled", 0)]


async def test_queries_have_features_and_sources_with_watermark_records_between_them():
    records = await settled_records(learns=True)
    queries = [record for record in records if "trace_id" in record]
    assert [query["n"] for query in queries] == list(range(N_QUERIES))
    for i, query in enumerate(queries):
        Settled.model_validate(query)
        assert query["features"] == [[0.5, i], [0.25, 1]]
        assert query["feature_names"] == ["f0", "f1"]
        assert query["candidate_ids"] == ["a", "b"]
        assert query["sources"] == {"human": 1}
    watermark_records = [record for record in records if "trace_id" not in record]
    assert watermark_records
    settled_ms = [query["settled_time_ms"] for query in queries]
    for watermark_record in watermark_records:
        WatermarkRecord.model_validate(watermark_record)
        assert watermark_record["n"] == sum(
            ms < watermark_record["watermark_ms"] for ms in settled_ms
        )
    assert max(watermark_record["watermark_ms"] for watermark_record in watermark_records) > max(
        settled_ms
    )
    assert max(settled_ms) == LONG_AGO_MS + 1_000 * (N_QUERIES - 1) + SETTINGS.maturity_ms


DESCRIBED = {
    "tools": {"candidate_kind": "tool", "descriptions": ["Finds flights.", ""]},
    "graphs": {"candidate_kind": "graph", "graphs": [
        {"type": "plan", "text": "search, then book", "n_nodes": 2, "n_edges": 1},
        {"type": "", "text": "", "n_nodes": 0, "n_edges": 0},
    ]},
    "names": {"candidate_kind": "tool"},
}  # fmt: skip


def described_traffic() -> Traffic:
    """The same queries with descriptions of their candidates in place of features."""
    plan = {"type": "plan", "text": "search, then book", "nodes": [1, 2], "edges": [[1, 2]]}
    more = [
        {"descriptions": ["Finds flights.", None]},
        {"graphs": [plan, {}]},
        {"candidate_kind": "tool"},
    ]
    rankings = [
        message(i, candidate_ids=["a", "b"], scores=[2, 1], query=f"q {i}", **more[i % 3])
        for i in range(N_QUERIES)
    ]
    rest = traffic()
    return Traffic((*rankings, *rest.rankings[N_QUERIES:]), rest.judgments)


async def test_descriptions_are_written_and_bad_descriptions_are_dead_letters():
    whole = described_traffic()
    bad = message(9_999, candidate_ids=["a"], scores=[1], descriptions=["a"], graphs=[{}])
    harness = WorkerHarness(n_tasks=1, learns=True)
    harness.append({0: Traffic((*whole.rankings[:5], bad, *whole.rankings[5:]), whole.judgments)})
    await harness.until_end(max_poll_records=7)
    records = [json.loads(record.value) for record in harness.broker.output("settled", 0)]
    queries = [record for record in records if "trace_id" in record]
    assert len(queries) == N_QUERIES
    for i, query in enumerate(queries):
        Settled.model_validate(query)
        offered = DESCRIBED[("tools", "graphs", "names")[i % 3]]
        members = {"candidate_kind", "descriptions", "graphs"} & query.keys()
        assert {name: query[name] for name in members} == offered
        assert (query["query"], query["candidate_ids"]) == (f"q {i}", ["a", "b"])
        assert "features" not in query
    [letter] = harness.broker.output("dead-letters", 0)
    assert dict(letter.headers)["reason"] == b"schema"


async def test_records_have_no_training_data_without_learning():
    learned = [record for record in await settled_records(learns=True) if "trace_id" in record]
    plain = [record for record in await settled_records(learns=False) if "trace_id" in record]
    further = {"sources", "candidate_ids", "feature_names", "features"}
    assert all(further <= record.keys() for record in learned)
    assert plain == [
        {name: value for name, value in record.items() if name not in further} for record in learned
    ]


@pytest.mark.parametrize("cut", [0.3, pytest.param(0.7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("made", first_quick(traffic, described_traffic))
async def test_a_successor_writes_the_training_data_read_before_the_restart(cut, made):
    whole = [
        record for record in await settled_records(learns=True, made=made) if "trace_id" in record
    ]
    harness, records = WorkerHarness(n_tasks=1, learns=True), made()
    harness.append({0: records.part(0, cut)})
    await harness.until_end(max_poll_records=7)
    harness.append({0: records.part(cut, 1)})
    await harness.until_end(max_poll_records=11)
    values = [json.loads(record.value) for record in harness.broker.output("settled", 0)]
    assert [record for record in values if "trace_id" in record] == whole
