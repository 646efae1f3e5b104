"""The topic `settled` while learning is on: through a kill, with watermark records."""

import json
import signal
from dataclasses import replace

import pytest

from evaluator.core.measures import MeasureSet
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.wire.outputs.settled import decode_settled
from tests.kafka.world import lanes
from tests.oracle.messages import Raw
from tests.worker.traffic import LONG_AGO_MS, SETTINGS

pytestmark = pytest.mark.kafka
N_QUERIES = 200
SOON = replace(SETTINGS, maturity_ms=1_000, out_of_orderness_ms=50, measures=("mrr",))


def raw(number, **more):
    at_ms = LONG_AGO_MS + number
    common = {"schema_version": 1, "trace_id": f"t-{number}", "node_id": "n", "timestamp_ms": at_ms}
    return Raw(0, at_ms, json.dumps({**common, **more}).encode(), f"t-{number}".encode())


def queries_and_watermarks(world):
    queries, watermarks = [], []
    for record in lanes(world.outputs(), "settled"):
        read = decode_settled(record.value, MeasureSet.parse(["mrr"]))
        if isinstance(read, SettledQuery):
            queries.append(read)
        else:
            watermarks.append(record)
    return queries, watermarks


def test_propensities_of_offers_survive_a_killed_worker(make_world, start):
    world = make_world(1, settings=SOON)
    world.produce({
        ("rankings", 0): [
            raw(i, candidate_ids=["a", "b"], scores=[2, 1], features=[[i, 0.5], [0.25, -i]])
            for i in range(N_QUERIES)
        ],
        ("judgments", 0): [raw(i, grades={"b": 1}, source="human") for i in range(N_QUERIES)],
    })  # fmt: skip
    settings = {"heartbeats": "off", "learning": "propose", "gate_measure": "mrr"}
    first = start(world, **settings)
    first.until_read(world.ends())
    first.signal(signal.SIGKILL)
    first.wait()
    assert not queries_and_watermarks(world)[0]
    later = Raw(0, LONG_AGO_MS + 60_000, None)
    world.produce({("rankings", 0): [later], ("judgments", 0): [later]})
    second = start(world, **settings)
    second.until_read(world.ends())
    second.eventually(lambda: len(queries_and_watermarks(world)[0]) == N_QUERIES)
    assert second.stop() == 0
    queries, watermarks = queries_and_watermarks(world)
    assert [query.n for query in queries] == list(range(N_QUERIES))
    for i, query in enumerate(queries):
        assert query.features.tolist() == [[i, 0.5], [0.25, -i]]
        assert query.sources == {"human": 1}
        assert query.served_units == {"mrr": 1 << 39}
    assert {record.key for record in watermarks} == {None}
    assert json.loads(watermarks[-1].value) == {
        "task": 0, "watermark_ms": LONG_AGO_MS + 60_000 - 50, "n": N_QUERIES,
    }  # fmt: skip
