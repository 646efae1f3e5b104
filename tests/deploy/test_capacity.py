"""The formulas of docs/capacity.md, held against the code and against a measurement."""

import gc
import re
import tracemalloc

import pytest
import yaml

from benchmarks import memory
from evaluator.config import Settings
from evaluator.core.held import HeldQueries
from tests.tidy.tree import ROOT, table_below

PAGE = (ROOT / "docs" / "capacity.md").read_text("utf-8")
BASE_BYTES = 150e6


def numbers(row):
    return [float(cell.replace(",", "").removesuffix(" GB")) for cell in row]


def test_the_page_has_the_formula_of_the_benchmark():
    formula = (
        f"bytes of a held query = {memory.QUERY_BYTES} + {memory.JUDGED_BYTES} j "
        f"+ {memory.SLACK} ({memory.CODE_BYTES} + {memory.RANK_BYTES} R) C"
    )
    assert formula in PAGE


def test_a_candidate_costs_what_the_columns_are_wide():
    held = HeldQueries(n_measures=1)
    assert held._candidates["code"].itemsize == memory.CODE_BYTES
    assert held._ranks["rank"].itemsize == memory.RANK_BYTES


def test_the_table_of_measurements_has_the_formula_beside_them():
    rows = table_below(PAGE, "## Memory")  # the parts of the formula come first
    assert rows[0][0] == str(memory.QUERY_BYTES)
    table = PAGE.split("| candidates | rankers | judged | bytes | formula |\n")[1].split("\n\n")[0]
    cases = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]
    found = [(int(c), int(r), judged == "yes") for c, r, judged, _, _ in cases]
    assert found == memory.CASES
    for case, (_, _, _, measured, formula) in zip(memory.CASES, cases, strict=True):
        said = float(formula.replace(",", ""))
        assert said == pytest.approx(memory.formula(*case), abs=0.51)
        assert said / 1.5 < float(measured.replace(",", "")) <= said


@pytest.mark.slow
@pytest.mark.parametrize("case", [(5, 1, True), (20, 2, True), (20, 2, False)])
def test_the_formula_bounds_what_python_allocates(case):
    n = 4 * memory.BATCH  # columns double: now they are full
    n_candidates, n_rankers, judged = case
    memory.fill(memory.BATCH, n_candidates, n_rankers, judged=judged)  # what decoding keeps
    tracemalloc.start()
    try:
        engine = memory.fill(n, n_candidates, n_rankers, judged=judged)
        gc.collect()
        per_query = tracemalloc.get_traced_memory()[0] / n
    finally:
        tracemalloc.stop()
    assert engine.held == n
    assert 0.5 * memory.formula(*case) < per_query < memory.formula(*case)


def test_the_examples_follow_from_the_formula():
    defaults = Settings()
    seconds = (defaults.retention_ms + defaults.out_of_orderness_ms) / 1000
    assert f"| {seconds:,.0f} |" in PAGE
    per_query = memory.formula(20, 2, 0.3)
    assert f"({per_query:,.0f} bytes)" in PAGE
    table = PAGE.split("| rankings per second and worker | held | memory |\n")[1].split("\n\n")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines()[1:]]
    assert len(rows) == 4
    for rate, held, gigabytes in map(numbers, ([cell.strip() for cell in row] for row in rows)):
        assert held == rate * seconds
        assert gigabytes == pytest.approx((BASE_BYTES + held * per_query) / 1e9, rel=0.03)


@pytest.mark.parametrize("manifest", ["sidecar/deployment.yaml", "statefulset/stateful-set.yaml"])
def test_the_manifests_carry_what_the_page_says(manifest):
    text = (ROOT / "deploy" / "kubernetes" / "overlays" / manifest).read_text("utf-8")
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    (evaluator,) = [
        one
        for one in [*spec.get("initContainers", []), *spec["containers"]]
        if one["name"] == "evaluator"
    ]
    gibibytes, rate = re.search(r"ask for (\d+) GiB, so for up to (\d+) rankings", PAGE).groups()
    assert evaluator["resources"]["limits"]["memory"] == f"{gibibytes}Gi"
    room = int(gibibytes) * 2**30
    assert "above the figure by a fifth" in PAGE
    assert with_headroom(int(rate)) <= room < with_headroom(int(rate) + 1)


def test_the_volumes_of_the_manifests_are_those_of_the_page():
    overlays = ROOT / "deploy" / "kubernetes" / "overlays"
    workers = yaml.safe_load((overlays / "statefulset" / "stateful-set.yaml").read_text("utf-8"))
    (claim,) = workers["spec"]["volumeClaimTemplates"]
    pods = yaml.safe_load((overlays / "sidecar" / "deployment.yaml").read_text("utf-8"))
    volumes = pods["spec"]["template"]["spec"]["volumes"]
    (state,) = [one["emptyDir"] for one in volumes if one["name"] == "state"]
    found = re.search(
        r"The (\d+) GiB volumes of the manifests are for ([\d.]+) million such queries per worker"
        r" \(twice ([\d.]+) kB each\):\n(\d+) rankings",
        PAGE,
    )
    gibibytes, millions, kilobytes, rate = map(float, found.groups())
    sizes = {claim["spec"]["resources"]["requests"]["storage"], state["sizeLimit"]}
    assert sizes == {f"{gibibytes:.0f}Gi"}
    other_bytes = 0.3e9 + 1e9  # write-ahead logs, and what is forgotten and not deleted yet
    assert millions * 1e6 * 2 * kilobytes * 1e3 + other_bytes <= gibibytes * 2**30
    assert rate * 86_700 <= millions * 1e6 < (rate + 1) * 86_700


def with_headroom(rate):
    """Bytes that a container needs for so many rankings per second: the figure and a fifth."""
    return 1.2 * (BASE_BYTES + rate * 86_700 * memory.formula(20, 2, 0.3))


def test_the_speed_is_that_of_the_benchmark():
    result = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    (row,) = [line for line in result.splitlines() if line.startswith("| `evaluator run")]
    _, pairs, _, cpu, _ = [cell.strip() for cell in row.strip("|").split("|")]
    assert f"{cpu} us on one core" in PAGE
    assert f"{pairs} the\nmeasured one" in PAGE


def test_learning_takes_what_was_measured():
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    alone, beside, read, learned = (
        float(line.strip("|").split("|")[1])
        for line in page.split("## Learning beside a worker")[1].split("\n## ")[0].splitlines()
        if line.startswith(("| decode", "| the same", "| the steward"))
    )
    assert f"(38 + {beside - alone:.0f}) us / 0.5" in PAGE
    assert f"settled per second x {read:.0f} us + judged ones x {learned:.0f} us" in PAGE
    (bound,) = re.findall(r"so ([\d,]+) judged queries per second over all", PAGE)
    assert 0 <= 0.5e6 / (read + learned) - float(bound.replace(",", "")) < 100
