"""docs/backfill.md as written: a drop from before the deployment, on the dashboards."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.write_dashboards import FOLDER
from tests.deploy.rules import promtool
from tests.deploy.server import Prometheus, folder_on_disk
from tests.deploy.test_queries import filled
from tests.exposition.checked import Checked, ExpositionError
from tests.kafka.broker import free_ports
from tests.replay.running import judgment, put, ranking
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.promtool, pytest.mark.slow, pytest.mark.xdist_group("minutes")]

PAGE = ROOT / "docs" / "backfill.md"
MINUTE_MS = 60_000
START_MS = 1_760_918_400_000  # 2025-10-20T00:00:00Z
DROP_MS = START_MS + 7 * 86_400_000
N_MINUTES = 5 * 60
"""An hour more than the page replays: it has to be left out."""

QUERY_TIME = "2025-10-27T03:30:00Z"
"""Two and a half hours after the first query of the drop has settled."""

EMPTY = {
    "Evidence of alarms",
    "Watched series, the most evidence first",
    "Last day of watched series, and the expected level",
    "Mean of levels by the hour",
    "Levels minus all queries, the worst first",
    "Judged in time, by level",
    "Running mean of each worker",
    "Delay of judgments",
    "Judgments without a ranking",
}
"""Panels of the quality board that the page calls empty for lack of messages or of a process."""
ALIKE = {"Alerts firing"}
"""Panels that have data on any Prometheus."""


def world() -> tuple[list[bytes], list[bytes]]:
    """Five hours on two days a week apart: eight queries a minute of prod and of canary.

    Six of the eight are judged ten minutes later. Four of the six have their relevant candidate
    first, so the mean is 2/3; from DROP_MS on it is two of the six of prod, and the mean 1/3.
    """
    rankings, judgments = [], []
    times_ms = [
        day_ms + minute * MINUTE_MS for day_ms in (START_MS, DROP_MS) for minute in range(N_MINUTES)
    ]
    for time_ms in times_ms:
        for variant in ("prod", "canary"):
            n_good = 2 if variant == "prod" and time_ms >= DROP_MS else 4
            for n in range(8):
                name = f"{variant}-{time_ms}-{n}"
                rankings.append(ranking(name, time_ms, model="ranker", variant=variant))
                if n < 6:
                    grades = {"a": int(n < n_good)}
                    judgments.append(judgment(name, time_ms + 10 * MINUTE_MS, grades))
    return rankings, judgments


def commands(page: str) -> str:
    """Every command of the page, in its order."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The folder in which the commands of the page ran; `output` is their output."""
    with folder_on_disk() as folder:
        run_commands(folder)
        yield folder


def run_commands(folder: Path) -> None:
    for name, lines in zip(("rankings", "judgments"), world(), strict=True):
        put(folder / "logs", f"{name}.ndjson", lines)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / "data").mkdir()
    (folder / "worker.toml").write_text('measures = "ndcg@10"\nhistogram_measures = "ndcg@10"\n')
    script = commands(PAGE.read_text("utf-8")).replace(
        "localhost:9099", f"localhost:{free_ports(1)[0]}"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "data": "data"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "output").write_text(done.stdout)


@pytest.fixture(scope="module")
def prometheus(folder) -> Iterator[Prometheus]:
    """A current Prometheus on the folder that the commands have filled."""
    server = Prometheus(folder, jobs={})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def query_at(server: Prometheus, expr: str, moment: str = QUERY_TIME) -> list[dict]:
    data = server.ask("query", query=expr, time=moment)
    assert isinstance(data, dict)
    return data["result"]


def value(server: Prometheus, expr: str, moment: str = QUERY_TIME) -> float:
    (series,) = query_at(server, expr, moment)
    return float(series["value"][1])


def mean(variant: str) -> str:
    (panel,) = (one for one in board("quality") if one["title"].startswith("Mean by the hour"))
    expr = panel["targets"][0]["expr"].replace("$variant", variant)
    return filled(expr)


def board(name: str) -> list[dict]:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["panels"]


def test_the_commands_show_the_drop_before_anything_is_loaded(folder):
    output = (folder / "output").read_text()
    means = dict(re.findall(r'\{variant="(\w+)"\} => ([\d.]+) @', output))
    assert float(means["prod"]) == pytest.approx(1 / 3, abs=1e-3)
    assert float(means["canary"]) == pytest.approx(2 / 3, abs=1e-3)


def test_a_dashboard_shows_the_drop_before_and_after(prometheus):
    assert value(prometheus, mean("prod"), "2025-10-20T03:30:00Z") == pytest.approx(2 / 3, abs=1e-3)
    assert value(prometheus, mean("prod")) == pytest.approx(1 / 3, abs=1e-3)
    assert value(prometheus, mean("canary")) == pytest.approx(2 / 3, abs=1e-3)


def test_prometheus_has_every_sample_and_ends_with_the_totals(folder, prometheus):
    everything = query_at(prometheus, '{__name__=~"evaluator_.+"}[8d]', "2025-10-27T04:00:00Z")
    n_samples = int(
        re.search(r"([\d,]+) samples", (folder / "output").read_text())[1].replace(",", "")
    )
    assert sum(len(series["values"]) for series in everything) == n_samples
    totals = json.loads((folder / "october" / "totals.json").read_text())["totals"]
    for row in totals:
        if row["kind"] == "settled":
            labels = f'{{variant="{row["variant"]}"}}'
            for name, total in (("queries", row["queries"]), ("value", row["sum_units"] / 2**40)):
                series = f"evaluator_quality_{name}_total{labels}"
                assert value(prometheus, series, "2025-10-27T03:54:00Z") == total


def test_every_series_names_its_run_and_the_job(folder, prometheus):
    chain = json.loads((folder / "october" / "manifest.json").read_text())["chain"]
    series = query_at(prometheus, '{__name__=~"evaluator_.+"}')
    assert {(one["metric"]["run"], one["metric"]["job"]) for one in series} == {
        (chain[:12], "evaluator")
    }


@pytest.mark.parametrize("panel", board("quality"), ids=lambda panel: panel["title"])
def test_exactly_the_panels_named_on_the_page_are_empty(prometheus, panel):
    if panel["title"] in ALIKE or "targets" not in panel:
        return
    for target in panel["targets"]:
        expr = filled(target["expr"].replace("$__rate_interval", "4m"))
        is_limit = (
            re.match(r"-?evaluator:\w+($|\{)|vector", expr) and "limit" in target["legendFormat"]
        )
        compares = "quality_change" in expr  # its other half is not recorded here
        shown = panel["title"] not in EMPTY and not compares
        assert bool(query_at(prometheus, expr)) == (shown or bool(is_limit)), expr
    if panel["title"] in EMPTY:
        assert f"*{panel['title']}*" in PAGE.read_text("utf-8")


def test_promtool_drops_unsorted_samples_silently(tmp_path):
    times = (1_760_918_400, 1_760_918_520, 1_760_918_460, 1_760_918_580)
    lines = [f"some_total 1 {time}" for time in times]
    file = tmp_path / "some.om"
    file.write_text("\n".join(["# TYPE some counter", *lines, "# EOF\n"]))
    code, output = promtool("tsdb", "create-blocks-from", "openmetrics", file, tmp_path / "blocks")
    (numbers,) = re.findall(r"0\.001s +(\d+) ", output)
    assert (code, int(numbers)) == (0, 3)
    with pytest.raises(ExpositionError, match="back in time"):
        list(Checked().lines(file.read_bytes().splitlines()))


def test_the_job_can_be_chosen(prometheus):
    names = json.loads((FOLDER / "quality.json").read_text("utf-8"))["templating"]["list"]
    (query,) = (one["query"] for one in names if one["name"] == "job")
    (selector,) = re.fullmatch(r"label_values\((.+), job\)", query).groups()
    assert {one["metric"]["job"] for one in query_at(prometheus, selector)} == {"evaluator"}
