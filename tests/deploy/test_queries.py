"""Every query of the dashboards and of the rules, on a Prometheus with the metrics of a demo."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.request import urlopen

import pytest

from evaluator.exposition.series import SPECS
from scripts.write_dashboards import FOLDER
from tests.deploy.rules import promtool, rules_of
from tests.deploy.server import Prometheus, Recording, ended
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.promtool, pytest.mark.slow, pytest.mark.xdist_group("minutes")]

WEEK_SECONDS = 7 * 86_400
LONGEST_SECONDS = 2 * 3_600
"""The longest duration of the demo on a busy machine."""
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
TARGETS = [
    target["expr"]
    for board in BOARDS.values()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]
SELECTOR = re.compile(r"\bevaluator[:_][\w:]+(?:\{[^}]*\})?|\bup\{[^}]*\}")
ELSEWHERE = (
    *("evaluator_input_retention_seconds", "evaluator_input_retention_needed_seconds"),
    "evaluator_memory_limit_bytes",
)
"""Series that topics in memory or this machine may lack; other tests cover them."""
NOT_IN_THE_DEMO = (
    *("evaluator:messages_steady:min15m", "evaluator:snapshot_age_seconds:min"),
    *("evaluator:map_lag:sum", "evaluator:map_records:increase5m"),
)
"""Series that appear later, or need snapshots or a map; other tests cover their rules."""


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory) -> Path:
    """The output of the demo."""
    return tmp_path_factory.mktemp("demo") / "output"


@pytest.fixture(scope="module")
def demo(demo_output, tmp_path_factory) -> Iterator[str]:
    """The address of the demo's metrics."""
    command = [
        *(sys.executable, "-m", "evaluator", "demo", "--keep"),
        *("--set", "histogram_measures=ndcg@10", "--set", "max_store_bytes=1000000000"),
        *("--set", "segments=locale", "--set", "segment_levels=locale=de"),
        *("--set", "alarm_pairs=served-bm25", "--set", "alarm_objectives=ndcg@10=0.3"),
        *("--set", "alarm_variants=canary-prod"),
        *("--set", "runbook_url=https://example.com", "--set", "dashboard_url=https://example.com"),
        *("--set", f"state_dir={tmp_path_factory.mktemp('state')}"),
    ]
    with demo_output.open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = until(
            lambda: re.search(r"http://([\w.:]+)/", demo_output.read_text("utf-8")),
            details=lambda: demo_output.read_text("utf-8"),
        )
        yield found[1]
    finally:
        ended(running)


@pytest.fixture(scope="module")
def prometheus(demo, demo_output, tmp_path_factory) -> Iterator[Prometheus]:
    """A Prometheus with the demo, and with its recorded series of today as those of last week."""
    folder = tmp_path_factory.mktemp("prometheus")
    recording = Recording(demo)
    server = Prometheus(folder, jobs={"evaluator": recording.address})
    try:
        recording.record(lambda: "The page remains" in demo_output.read_text("utf-8"))
        server.start()
        until(lambda: recording.is_served, every=0.2, details=server.log)
        soon = [name for name in rules_of("record") if name not in NOT_IN_THE_DEMO]
        this_week = [name for name in soon if not re.search("quality_change|_before:", name)]
        wait_for_records(server, this_week)
        backfill_last_week(server, folder / "last-week.om")
        server.start()
        wait_for_records(server, soon)
        yield server
    finally:
        server.stop()
        recording.stop()


def wait_for_records(server: Prometheus, names: Iterable[str]) -> None:
    """Waits until each of these rules has recorded a sample at any time.

    A share of the last five minutes ends five minutes after the messages of the demo, which on a
    busy machine is before the demo has ended.
    """
    for name in names:
        ever = f"last_over_time({name}[{LONGEST_SECONDS}s])"
        until(
            lambda ever=ever: server.query(ever),
            every=0.2,
            details=lambda ever=ever: f"{ever}\n{server.log()}",
        )


def backfill_last_week(server: Prometheus, file: Path) -> None:
    """Stops the server and gives it the highest values so far a second time, a week earlier."""
    recorded = values_during_demo(server, '{__name__=~"evaluator:.+"}')
    recorded.sort(key=lambda series: series["metric"]["__name__"])
    server.stop()
    lines: list[str] = []
    now = int(time.time())
    times = range(now - WEEK_SECONDS - 120, now - WEEK_SECONDS + LONGEST_SECONDS, 30)
    for series in recorded:
        name = series["metric"].pop("__name__")
        if f"# TYPE {name} gauge" not in lines:
            lines.append(f"# TYPE {name} gauge")
        labels = ",".join(f"{key}={json.dumps(text)}" for key, text in series["metric"].items())
        highest = max((float(value) for _, value in series["values"] if value != "NaN"), default=0)
        lines += [f"{name}{{{labels}}} {highest} {moment}" for moment in times]
    file.write_text("\n".join([*lines, "# EOF\n"]))
    code, output = promtool("tsdb", "create-blocks-from", "openmetrics", file, server.data)
    assert code == 0, output


def shown(server: Prometheus, expr: str) -> list[dict]:
    """The value of an expression, now or soon: a scrape of the busy demo may have timed out."""
    return until(
        lambda: server.query(expr), every=0.2, details=lambda: f"no series: {expr}\n{server.log()}"
    )


def drawn(server: Prometheus, expr: str) -> list[dict]:
    """The series at any time: for example, an experiment may end before the demo."""
    return server.query(expr) or values_during_demo(server, expr) or shown(server, expr)


def with_lasting_conditions(expr: str) -> str:
    """The query without conditions that only a scrape in the right seconds of the demo meets.

    On a busy machine scrapes of the busy demo take too long: the first one may come when the
    challenger is the champion already, and counters do not grow between the others.
    """
    return expr.replace('ranker="challenger"', 'ranker="champion"').replace("> 0)", ">= 0)")


def is_elsewhere(expr: str) -> bool:
    """Whether the demo cannot show this: it has neither snapshots nor an `evaluator map`."""
    if not re.search(r"evaluator:snapshot_age_seconds:min|evaluator[:_]map_", expr):
        return False
    known = {spec.name for spec in SPECS.values()} | {*rules_of("record")}
    assert {each.partition("{")[0] for each in SELECTOR.findall(expr)} <= known
    return True


def filled(expr: str, chosen: Mapping[str, str] = MappingProxyType({})) -> str:
    """PromQL as sent by Grafana, with the *chosen* values of a variable, or else all of them."""
    expr = expr.replace("$__rate_interval", "1m")
    return re.sub(r"\$(\w+)", lambda found: chosen.get(found[1], ".*"), expr)


@pytest.fixture(scope="module")
def listed(prometheus) -> dict[str, str]:
    """The text of Grafana for each variable whose values are selected one by one: `(a|b)`."""
    found = {}
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                series = shown(prometheus, filled(query[1]))
                values = {one["metric"].get(query[2]) for one in series} - {None}
                found[variable["name"]] = f"({'|'.join([*sorted(values), 'none of them'])})"
    return found


def test_every_panel_has_data(prometheus, subtests):
    for expr in TARGETS:
        with subtests.test(expr=expr):
            assert "$" not in filled(expr)
            assert is_elsewhere(expr) or drawn(prometheus, with_lasting_conditions(filled(expr)))


def test_every_panel_has_data_for_a_list_of_values(prometheus, listed, subtests):
    for expr in TARGETS:
        with subtests.test(expr=expr):
            assert is_elsewhere(expr) or drawn(
                prometheus, with_lasting_conditions(filled(expr, listed))
            )


def test_a_chosen_variant_has_the_series_of_two_variants_and_no_other(prometheus):
    (evidence,) = [
        expr for expr in TARGETS if "without (instance, pod) (evaluator_alarm_evi" in expr
    ]
    assert {one["metric"]["variant"] for one in drawn(prometheus, filled(evidence))} == {
        *("prod", "canary", "canary-prod")
    }
    chosen = drawn(prometheus, filled(evidence, {"variant": "canary"}))
    assert {one["metric"]["variant"] for one in chosen} == {"canary", "canary-prod"}


def test_a_list_of_values_replaces_a_variable_as_one_expression():
    expr = 'a{job=~"$job",b=~"$b"}[$__rate_interval]'
    assert filled(expr, {"job": "(x|y)"}) == 'a{job=~"(x|y)",b=~".*"}[1m]'


def test_a_recording_rule_records(prometheus, subtests):
    for name in rules_of("record"):
        with subtests.test(name=name):
            if name in NOT_IN_THE_DEMO:
                prometheus.query(rules_of("record")[name]["expr"])  # a mistake in it is an error
                continue
            assert drawn(prometheus, name)
            assert drawn(prometheus, rules_of("record")[name]["expr"])


def test_every_series_that_an_alert_uses_exists(prometheus, subtests):
    for name in rules_of("alert"):
        with subtests.test(name=name):
            expr = rules_of("alert")[name]["expr"]
            prometheus.query(expr)  # a mistake in it is an error
            selectors = SELECTOR.findall(expr)
            assert selectors
            exported = {spec.name for spec in SPECS.values()}
            for one in selectors:
                if one.partition("{")[0] in ELSEWHERE:
                    assert one.partition("{")[0] in exported
                elif one.partition("{")[0] not in NOT_IN_THE_DEMO:
                    assert drawn(prometheus, one)


@pytest.mark.parametrize("name", BOARDS)
def test_variables_have_values(prometheus, name):
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            (first, *_) = shown(prometheus, filled(match[1]))
            assert first["metric"][match[2]]


@pytest.mark.parametrize("name", BOARDS)
def test_annotations_can_be_queried_and_show_the_events_of_the_demo(prometheus, listed, name):
    annotations = {one["name"]: one["expr"] for one in BOARDS[name]["annotations"]["list"]}
    for mark, expr in annotations.items():
        for query in (filled(expr), filled(expr, listed)):
            marked = values_during_demo(prometheus, query)
            if mark in ("Promotions", "Deployments"):
                assert marked, f"{mark}: {query}"
                assert all(one["metric"] for one in marked), "without labels there is no text"


@pytest.mark.parametrize("name", BOARDS)
def test_a_promotion_is_marked_while_its_counter_increases_and_never_before(name, tmp_path):
    [expr] = [
        one["expr"] for one in BOARDS[name]["annotations"]["list"] if one["name"] == "Promotions"
    ]
    labels = '{model="m", status="promoted"}'
    file = tmp_path / "tests.yml"
    series = 'evaluator_weights_releases_total{job="a", model="m", status="%s"}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": series % "promoted", "values": "0x10 1x20"},
            {"series": series % "challenger", "values": "0+1x30"},
        ],
        "promql_expr_test": [
            {"expr": f"round({filled(expr)})", "eval_time": at, "exp_samples": samples}
            for at, samples in (
                ("10m", []),
                ("12m", [{"labels": labels, "value": 1}]),
                ("20m", []),
            )
        ],
    }
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}), "utf-8")
    code, output = promtool("test", "rules", file)
    assert code == 0, output


def values_during_demo(server: Prometheus, expr: str) -> list[dict]:
    """The value of an expression at any time since the demo began, as in annotations."""
    now = time.time()
    data = server.ask(
        "query_range", query=expr, start=str(now - LONGEST_SECONDS), end=str(now), step="5"
    )
    assert isinstance(data, dict)
    return data["result"]


def test_values_have_exemplars_that_name_a_trace(prometheus):
    (panel,) = [one for one in BOARDS["quality"]["panels"] if one["type"] == "heatmap"]
    (target,) = panel["targets"]
    now = time.time()
    found = prometheus.ask(
        "query_exemplars",
        query=filled(target["expr"]),
        start=str(now - LONGEST_SECONDS),
        end=str(now),
    )
    exemplars = [exemplar for series in found for exemplar in series["exemplars"]]
    assert exemplars
    assert all(exemplar["labels"]["trace_id"] for exemplar in exemplars)
    assert all(float(exemplar["value"]) <= 0.5 for exemplar in exemplars)


def test_the_demo_learns_promotes_and_serves_weights(demo):
    for model in ("tool-ranker", "graph-ranker"):
        with urlopen(f"http://{demo}/weights?model={model}", timeout=PATIENCE_SECONDS) as response:
            record = json.load(response)
            assert response.headers["ETag"] == f'"{record["checksum"]}"'
        assert (record["model"], record["status"]) == (model, "promoted")
        assert min(record["weights"]) > 0  # every feature grows with the grade
    with urlopen(f"http://{demo}/status", timeout=PATIENCE_SECONDS) as response:
        leader = json.load(response)["leader"]
    assert leader["is_leader"]
    assert [each["model"] for each in leader["models"]] == ["graph-ranker", "tool-ranker"]


def test_prometheus_has_no_rule_that_failed(prometheus):
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= len(rules_of("alert")) + len(rules_of("record"))
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
