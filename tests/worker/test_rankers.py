"""Rankers of the same query are side by side in the totals and on Prometheus."""

import json

from evaluator.adapters.prometheus import EvaluatorCollector, exposition, registry_of
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.wire.outputs.encoding import totals_document
from tests.oracle.messages import Raw
from tests.worker.harness import WorkerHarness

PLAIN_TEXT = "text/plain"
ORDERS = {"served": [3.0, 2.0, 1.0], "bm25": [1.0, 2.0, 3.0], "dense": [2.0, 3.0, 1.0]}
MRR = {"served": 1.0, "bm25": 1 / 3, "dense": 1 / 2}


def message(timestamp_ms, **more):
    value = {"schema_version": 1, "trace_id": "t", "node_id": "n", "model": "m", **more}
    value["timestamp_ms"] = timestamp_ms
    return Raw(0, timestamp_ms, json.dumps(value).encode(), b"t")


async def measured():
    """A worker that has settled one query of three rankers, whose candidate `a` is relevant."""
    harness = WorkerHarness(1)
    scorers = {name: scores for name, scores in ORDERS.items() if name != "served"}
    ids = ["a", "b", "c"]
    query = message(0, candidate_ids=ids, scores=ORDERS["served"], scorers=scorers)
    much_later_ms = 10 * harness.settings.retention_ms
    later = message(much_later_ms, candidate_ids=ids, scores=ORDERS["served"], node_id="later")
    harness.produce("rankings", 0, [query, later])
    later = message(much_later_ms, grades={"a": 1}, node_id="later still")
    harness.produce("judgments", 0, [message(10, grades={"a": 1}), later])
    return await harness.until_end(measures=["mrr"])


async def test_totals_have_every_ranker_of_a_query():
    worker = await measured()
    tally = {}
    for view in worker.snapshot:
        add_tally(tally, view.tally)
    rows = totals_document(tally, MeasureSet.parse(["mrr"]))["totals"]
    found = {
        (row["kind"], row["ranker"]): (row["queries"], row["sum_units"])
        for row in rows
        if row["measure"] == "mrr" and row["queries"]
    }
    assert found == {
        (kind, ranker): (1, round(value * 2**40))
        for kind in ("running", "settled")
        for ranker, value in MRR.items()
    }


async def test_prometheus_has_every_ranker_of_a_query():
    worker = await measured()
    registry = registry_of(
        EvaluatorCollector(lambda: worker.snapshot, ready=lambda: True, version="0")
    )
    lines = exposition(registry, PLAIN_TEXT)[0].decode().splitlines()
    for ranker, value in MRR.items():
        labels = f'{{measure="mrr",model="m",ranker="{ranker}",variant=""}}'
        published = round(value * 2**40) / 2**40
        assert f"evaluator_quality_queries_total{labels} 1.0" in lines
        assert f"evaluator_quality_value_total{labels} {published}" in lines
        assert f"evaluator_running_value_mean{labels} {published}" in lines
