"""Well-formed input whose outputs are refused: the worker continues, with exact figures."""

import json
import random

import pytest

from tests.kafka.world import lanes
from tests.oracle.messages import Raw
from tests.oracle.totals import comparable
from tests.worker.traffic import LONG_AGO_MS, Traffic, traffic

pytestmark = pytest.mark.kafka

SERIES = 'evaluator_dead_letters_total{reason="oversize_output"}'
ROOM = {"evaluations": 20_000, "settled": 20_000, "windows": 150, "checkpoints": 300}


def message(trace, **members) -> Raw:
    common = {"schema_version": 1, "trace_id": trace, "node_id": "n"}
    value = {**common, "timestamp_ms": LONG_AGO_MS, **members}
    return Raw(0, LONG_AGO_MS, json.dumps(value).encode(), trace.encode())


def poison() -> Traffic:
    """One query with so many grades that its records are too large for a small topic."""
    rng = random.Random(1)
    names = [f"{rng.getrandbits(256):064x}" for _ in range(1_000)]  # hard to compress
    query = message("poison", candidate_ids=["a", "b"], scores=[2, 1], model="m" * 256)
    judgments = [
        message("poison", grades=dict.fromkeys(names, 1), judgment_id=f"j-{n}") for n in range(3)
    ]
    late = [message("lost", grades=dict.fromkeys(names, 1))]
    return Traffic((query,), (*judgments, *late))


def refused(totals) -> int:
    return totals["dead_letters"]["oversize_output"]


@pytest.mark.parametrize("narrow", [*ROOM, "dead-letters"])
def test_a_record_that_its_topic_refuses_is_a_dead_letter_and_the_worker_continues(
    make_world, start, narrow
):
    room = {**ROOM, "dead-letters": 3_000}[narrow]
    world = make_world(1, room={narrow: room})
    world.append({0: poison()})
    world.append({0: traffic(1, n_queries=20)})
    worker = start(world, checkpoint_interval_ms=100)
    worker.until_read(world.ends())
    if narrow != "dead-letters":  # whose letters are cut; a checkpoint may be refused later
        worker.eventually(lambda: refused(worker.totals) == worker.samples()[SERIES] > 0)
    totals, samples = worker.totals, worker.samples()
    assert worker.stop() == 0
    assert worker.events("output_too_large")
    n_refused = totals["dead_letters"].pop("oversize_output")
    assert samples[SERIES] == n_refused
    assert comparable(totals) == world.truth().totals
    letters = [
        letter
        for letter in lanes(world.outputs(), "dead-letters")
        if dict(letter.headers)["reason"] == b"oversize_output"
    ]
    if narrow == "dead-letters":
        assert n_refused == 0, "letters are cut"
        assert lanes(world.outputs(), "dead-letters")
        return
    assert n_refused >= len({letter.key for letter in letters}) > 0
    key = {"windows": b"m" * 256, "checkpoints": b"0+"}.get(narrow, b'["poison","n"]')
    assert any(key in letter.key for letter in letters)
    if narrow in {"evaluations", "settled"}:
        rows = [json.loads(record.value) for record in lanes(world.outputs(), narrow)]
        (stub, *_) = [row for row in rows if "too_large" in row]
        assert (stub["trace_id"], stub["grades"]) == ("poison", {})
    if narrow == "settled":
        numbers = [row["n"] for row in rows if "trace_id" in row]
        assert numbers == list(range(len(numbers)))
