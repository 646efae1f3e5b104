"""A world of the benchmark of alarms, with leaders that are killed, and without a leader."""

import json

import numpy as np
import pytest

from benchmarks.alarm_leader import computed, events_of, made, published, records_of
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.types.records import WatermarkRecord
from evaluator.leader import loop
from evaluator.wire.alarms.records import event_record
from tests.core.alarms.test_watch import watched


def record_of(task, value):
    """The content of a record of `settled`, without the leader's reader."""
    of = json.loads(value)
    if "watermark_ms" in of:
        return task, WatermarkRecord(of["watermark_ms"], of["n"])
    units = {
        ranker: {name: round(value * UNITS_PER_ONE) for name, value in values.items()}
        for ranker, values in of.pop("values").items()
    }
    del of["offset"]
    return SettledQuery(
        **of,
        units=units,
        sources={},
        candidate_ids=[],
        feature_names=None,
        features=np.zeros((0, 0)),
        propensities=None,
    )


def task_of(record):
    return getattr(record, "task", record[0])


@pytest.mark.slow
async def test_killed_leaders_publish_the_events_computed_without_a_leader(monkeypatch):
    monkeypatch.setattr(loop, "MAX_READ_RECORDS", 200)
    monkeypatch.setattr(loop, "IDLE_MS", 1)
    queries, rules, is_pair = made("-0.10, season 0.02", 0.003, 2, weeks=3, drop_day=17)
    values, n_continued = await published(queries, rules, is_pair=is_pair, most=200)
    assert n_continued == 3
    records = records_of(queries, is_pair=is_pair)
    found = sorted((record_of(task, of.value) for task, of in records), key=task_of)
    whole = watched([found], rules)
    assert values == [event_record(event).value for event in whole.events]
    events = events_of(values)
    assert events == computed(queries, rules, is_pair=is_pair)
    assert any(on for *_, on in events)
