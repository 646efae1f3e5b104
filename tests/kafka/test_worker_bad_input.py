"""Bad input through a whole worker: a dead letter for each record, a count, and no other effect."""

import json

import pytest

from tests.kafka.process import LONG_MS
from tests.kafka.world import lanes
from tests.oracle.messages import Raw
from tests.worker.bad_input import ACCEPTED, AT_MS, MALFORMED
from tests.worker.traffic import Traffic, traffic

pytestmark = pytest.mark.kafka


def unusual_records():
    rows = [
        (log, Raw(0, AT_MS + 1, value, b"key %d" % n))
        for n, (_, log, value, _) in enumerate(MALFORMED)
    ]
    return rows + [(log, Raw(0, AT_MS, value, key)) for _, log, key, value in ACCEPTED]


@pytest.fixture(scope="module")
def good():
    """Well-formed messages only, and in order, so that nothing of them is a dead letter."""
    queries = [
        json.dumps({"schema_version": 1, "trace_id": f"t-{n}", "node_id": "n", "timestamp_ms":
                    AT_MS + n * 1_000, "candidate_ids": ["a", "b"], "scores": [n % 3, 1]}).encode()
        for n in range(100)
    ]  # fmt: skip
    grades = [
        json.dumps({"schema_version": 1, "trace_id": f"t-{n}", "node_id": "n", "timestamp_ms":
                    AT_MS + n * 1_000 + 5, "grades": {"a": n % 2}}).encode()
        for n in range(0, 100, 2)
    ]  # fmt: skip
    return Traffic(
        tuple(Raw(0, AT_MS + 500_000, value, b"k") for value in queries),
        tuple(Raw(0, AT_MS + 500_000, value, b"k") for value in grades),
    )


def mixed(good, unusual):
    """The unusual records spread between the valid ones, in each log separately."""
    mixture = {}
    for log in ("rankings", "judgments"):
        mine = [raw for where, raw in unusual if where == log]
        rows = list(good.of(log))
        step = len(rows) // (len(mine) + 1)
        for index, raw in reversed(list(enumerate(mine, start=1))):
            rows.insert(index * step, raw)
        mixture[log] = tuple(rows)
    return Traffic(**mixture)


def test_each_kind_of_bad_input_becomes_a_dead_letter_and_changes_nothing(make_world, start, good):
    """Task 0 gets only valid messages, task 1 the same with malformed ones between them."""
    world = make_world(2)
    malformed = unusual_records()[: len(MALFORMED)]
    world.append({0: good, 1: mixed(good, malformed)})
    worker = start(world, max_poll_records=30, session_timeout_ms=LONG_MS)
    worker.until_read(world.ends())
    status, samples = worker.document("/status"), worker.samples()
    assert worker.stop() == 0
    letters = lanes(world.outputs(), "dead-letters")
    by_key = {record.key: record for record in letters}
    assert len(letters) == len(by_key) == len(MALFORMED)
    for n, (what, log, value, reasons) in enumerate(MALFORMED):
        record = by_key[b"key %d" % n]
        headers = dict(record.headers)
        assert record.value == (value[: 64 * 1024] if reasons == {"oversize"} else value), what
        assert headers["topic"].decode() == world.prefix + log, what
        assert headers["partition"] == b"1", what
        assert headers["reason"].decode() in reasons, what
        assert headers["detail"], what
        if "Confluent" in what:
            assert b"Confluent" in headers["detail"]
    for log in ("rankings", "judgments"):
        series = f'evaluator_messages_total{{outcome="malformed",topic="{log}"}}'
        assert samples[series] == sum(1 for _, where, *_ in MALFORMED if where == log)
    untouched, touched = status["tasks"]
    for name in ("clocks_ms", "watermark_ms", "open", "early"):
        assert untouched[name] == touched[name]
    check_same_outputs(world.outputs())
    truth = world.truth()
    truth.check_dead_letters(world.outputs(), once=True)
    assert truth.check_evaluations(world.outputs())


def check_same_outputs(outputs):
    """Both tasks wrote the same, apart from offsets, and watermark records, which batches cause."""
    for output in ("evaluations", "settled", "windows"):
        rows = [
            sorted(
                str({**json.loads(record.value), "task": None, "offset": None})
                for record in outputs[output, task]
                if record.key is not None or output != "settled"
            )
            for task in (0, 1)
        ]
        assert rows[0] == rows[1]
        assert rows[0]


def test_unusual_but_valid_input_is_accepted(world, start):
    world.produce({("rankings", 0): [], ("judgments", 0): []})
    unusual = unusual_records()[len(MALFORMED) :]
    world.append({0: Traffic(*(
        tuple(raw for where, raw in unusual if where == log) for log in ("rankings", "judgments")
    ))})  # fmt: skip
    worker = start(world)
    worker.until_read(world.ends())
    ledger = worker.totals["ledger"]
    assert worker.stop() == 0
    assert ledger["rankings"]["malformed"] == ledger["judgments"]["malformed"] == 0
    assert ledger["rankings"]["open"] == ledger["judgments"]["applied"] == 4
    assert ledger["rankings"]["heartbeat"] == ledger["judgments"]["heartbeat"] == 1
    assert not lanes(world.outputs(), "dead-letters")
    assert world.truth().check_evaluations(world.outputs()) == 4


def test_all_kinds_of_input_together_agree_with_the_oracle(world, start):
    """Traffic with every kind of bad and unusual input."""
    world.append({task: mixed(traffic(task), unusual_records()) for task in (0, 1)})
    assert start(world, "--until-end", max_poll_records=200).wait() == 0
    world.truth().check_outputs(world.outputs())
