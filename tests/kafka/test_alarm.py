"""From a worse ranker to a notification: Kafka, worker, Prometheus, Alertmanager, receiver.

Two worlds have two weeks and a day of event time in Kafka, which two workers read at once. In one
of them the ranker gets worse on the last day.
"""

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from urllib.request import urlopen

import pytest

from tests.core.alarms.settled import HOUR_MS, START_MS
from tests.deploy.server import Prometheus, Receiver, alertmanager
from tests.oracle.messages import Raw
from tests.waiting import PATIENCE_SECONDS, until
from tests.worker.traffic import SETTINGS

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.promtool,
    pytest.mark.slow,
    pytest.mark.xdist_group("minutes"),  # apart from the others, for it takes long
]

HOURS = 2 * 168 + 24
WORSE_HOUR = 2 * 168 + 6
PER_HOUR = 12
DOCS = "https://docs.example.com"
QUICK = replace(
    SETTINGS, maturity_ms=1_000, out_of_orderness_ms=300, measures=("ndcg@10", "mrr"), empty="zero"
)


def with_short_durations(rules: str) -> str:
    """The rules with a duration of one second in place of a minute."""
    return rules.replace("for: 1m", "for: 1s")


def has_watched_all(worker) -> bool:
    """Whether the ticks of all records but those of the last hour are closed."""
    alarms = worker.document("/status").get("leader", {}).get("alarms", {})
    return (alarms.get("watched_until_ms") or 0) >= START_MS + (HOURS - 1) * HOUR_MS


def muted(address: str) -> list[dict[str, str]]:
    """Labels of the alerts that an Alertmanager has and another one mutes."""
    with urlopen(f"http://{address}/api/v2/alerts", timeout=PATIENCE_SECONDS) as response:
        alerts = json.load(response)
    return [one["labels"] for one in alerts if one["status"]["inhibitedBy"]]


def records(*, drops: bool, hours: range = range(HOURS)) -> dict:
    """Rankings and their judgments; the best candidate comes first nine times of ten."""
    random = Random(20_26)
    made = {("rankings", 0): [], ("judgments", 0): []}
    times = sorted(random.randrange(len(hours) * HOUR_MS) for _ in range(len(hours) * PER_HOUR))
    for number, after_ms in enumerate(times):
        ms = hours.start * HOUR_MS + after_ms
        at_ms = START_MS + ms
        key = {
            "schema_version": 1,
            "trace_id": f"t{hours.start}-{number}",
            "node_id": "n",
            "timestamp_ms": at_ms,
        }
        right = 0.3 if drops and ms >= WORSE_HOUR * HOUR_MS else 0.9
        best = "a" if random.random() < right else "c"
        ranking = {**key, "model": "ranker", "variant": "prod", "candidate_ids": ["a", "b", "c"]}
        ranking["segments"] = {"locale": "de"}
        judgment = {**key, "grades": {best: 1}}
        bodies = {"rankings": {**ranking, "scores": [3, 2, 1]}, "judgments": judgment}
        for log, message in bodies.items():
            value = json.dumps(message).encode()
            made[log, 0].append(Raw(0, at_ms, value, key["trace_id"].encode()))
    return made


def test_a_drop_notifies_the_receiver_and_no_drop_notifies_none(make_world, start, tmp_path):
    worlds = {name: make_world(1, prefix_end=name, settings=QUICK) for name in ("falls", "stays")}
    for name, world in worlds.items():
        world.produce(records(drops=name == "falls"))
    links = {"runbook_url": f"{DOCS}/runbooks.md", "dashboard_url": "https://grafana.example.com/"}
    series = {"segments": "locale", "alarm_levels": "locale=de", "alarm_objectives": "ndcg@10=0.85"}
    workers = {n: start(world, alarms="on", **links, **series) for n, world in worlds.items()}
    for worker in workers.values():  # all alarms are on before Prometheus has seen one
        worker.eventually(lambda worker=worker: has_watched_all(worker))
    jobs = {name: f"127.0.0.1:{worker.port}" for name, worker in workers.items()}
    receiver = Receiver()
    with ExitStack() as stack:
        stack.callback(receiver.stop)
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        prometheus = Prometheus(
            tmp_path, jobs=jobs, alertmanager=address, rules=with_short_durations
        )
        prometheus.start()
        stack.callback(prometheus.stop)
        until(lambda: len(muted(address)) == 2)
        until(receiver.firing)
        silenced = {(one["alertname"], one.get("segment")) for one in muted(address)}
        watched = "max by (job) (evaluator_alarm_reference_weeks{measure='ndcg@10'})"
        until(lambda: [one["value"][1] for one in prometheus.query(watched)] == ["2", "2"])
    alarms = receiver.firing()
    assert [(one["labels"]["alertname"], one["labels"]["job"]) for one in alarms] == [
        ("EvaluatorQualityAlarm", "falls")
    ]
    assert silenced == {("EvaluatorQualityAlarm", "locale"), ("EvaluatorObjectiveAlarm", None)}
    assert "segment" not in alarms[0]["labels"]
    assert alarms[0]["labels"]["measure"] == "ndcg@10"
    names = "summary", "runbook_url", "dashboard_url"
    summary, url, dashboard = (alarms[0]["annotations"][name] for name in names)
    assert re.search(r"is 0\.\d{3}, expected 0\.\d{3}: lower than its past weeks explain", summary)
    assert url == f"{DOCS}/runbooks.md#evaluatorqualityalarm"
    model = alarms[0]["labels"]["model"]
    assert dashboard == (
        f"https://grafana.example.com/d/evaluator-quality?var-job=falls&var-model={model}"
    )
