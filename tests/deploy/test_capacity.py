"""The formulas of docs/capacity.md against the code and against a measurement."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from benchmarks import memory
from evaluator.config import Settings, load_settings
from evaluator.core.join.open_queries import OpenQueries
from tests.tidy.tree import ROOT, table_below

PAGE = (ROOT / "docs" / "capacity.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())
BASE_BYTES = 150e6


def numbers(row):
    return [float(cell.replace(",", "").removesuffix(" GB")) for cell in row]


def test_the_page_has_the_formula_of_the_benchmark():
    formula = (
        f"bytes of an open query = {memory.QUERY_BYTES} + {memory.JUDGED_BYTES} j "
        f"+ {memory.SLACK} ({memory.CODE_BYTES} + {memory.RANK_BYTES} R) C"
    )
    assert formula in PAGE


def test_bytes_per_candidate_are_the_widths_of_its_columns():
    open_queries = OpenQueries(n_measures=1)
    assert open_queries._candidates["code"].itemsize == memory.CODE_BYTES
    assert open_queries._ranks["rank"].itemsize == memory.RANK_BYTES


def test_the_table_of_measurements_also_has_the_formula():
    rows = table_below(PAGE, "## Memory")  # the parts of the formula come first
    assert rows[0][0] == str(memory.QUERY_BYTES)
    table = PAGE.split("| candidates | rankers | judged | bytes | formula |\n")[1].split("\n\n")[0]
    cases = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]
    found = [(int(c), int(r), judged == "yes") for c, r, judged, _, _ in cases]
    assert found == memory.CASES
    for case, (_, _, _, measured, formula) in zip(memory.CASES, cases, strict=True):
        stated = float(formula.replace(",", ""))
        assert stated == pytest.approx(memory.formula(*case), abs=0.51)
        assert stated / 1.5 < float(measured.replace(",", "")) <= stated


@pytest.mark.slow
@pytest.mark.parametrize("case", [(5, 1, True), (20, 2, False)])
def test_the_formula_bounds_the_memory_of_a_process(case):
    # Enough of them that a huge page more or less, 2 MB, does not matter.
    command = [sys.executable, "-m", "benchmarks.memory", "--queries=120000"]
    found = subprocess.run(
        [*command, f"--one={json.dumps(case)}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.5 * memory.formula(*case) < float(found.stdout) < memory.formula(*case)


def test_the_examples_follow_from_the_formula():
    defaults = Settings()
    seconds = (defaults.retention_ms + defaults.out_of_orderness_ms) / 1000
    assert f"| {seconds:,.0f} |" in PAGE
    per_query = memory.formula(20, 2, 0.3)
    assert f"({per_query:,.0f} bytes)" in PAGE
    table = PAGE.split("| rankings per second and worker | open | memory |\n")[1].split("\n\n")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines()[1:]]
    assert len(rows) == 4
    for rate, open_queries, gigabytes in map(
        numbers, ([cell.strip() for cell in row] for row in rows)
    ):
        assert open_queries == rate * seconds
        assert gigabytes == pytest.approx((BASE_BYTES + open_queries * per_query) / 1e9, rel=0.03)


OVERLAYS = ROOT / "deploy" / "kubernetes" / "overlays"
MANIFESTS = ["sidecar/deployment.yaml", "statefulset/stateful-set.yaml"]
STORED_QUERY_BYTES = 489
"""Of the benchmark's messages, by the table of the page."""


def of_manifests():
    """The settings of the manifests, and how many tasks a worker of theirs may have."""
    base = ROOT / "deploy" / "kubernetes" / "base" / "settings.toml"
    scaled = (OVERLAYS / "statefulset" / "scaled-object.yaml").read_text("utf-8")
    partitions = next(yaml.safe_load_all(scaled))["spec"]["maxReplicaCount"]
    return load_settings(config_file=base, environment={}), partitions


def pod_of(manifest):
    """The specification of the pods, and in it the evaluator."""
    whole = yaml.safe_load((OVERLAYS / manifest).read_text("utf-8"))["spec"]
    spec = whole["template"]["spec"]
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    (evaluator,) = [one for one in containers if one["name"] == "evaluator"]
    return whole, evaluator


def in_bytes(quantity):
    return int(quantity.removesuffix("Gi")) * 2**30


def bound_bytes(tasks, memory_tier_bytes, open_queries):
    """The memory that a worker takes at most, by the page."""
    return 300e6 + tasks * (200e6 + 1.5 * memory_tier_bytes) + 28 * open_queries


def test_the_bounds_of_measured_workers_follow_from_the_formula():
    assert "memory of a worker   <= 300 MB + T x (200 MB + 1.5 x memory_tier_bytes) + 28 x" in PAGE
    tier_bytes = Settings().memory_tier_bytes
    of_two_tasks, of_ten_million = bound_bytes(2, tier_bytes, 2e5), bound_bytes(1, tier_bytes, 1e7)
    assert f"By the bound it has at most {of_two_tasks / 1e9:.1f} GB" in WORDS
    (measured,) = re.findall(r"which is ([\d.]+) GB; ([\d.]+) GB by the bound", WORDS)
    assert measured[1] == f"{of_ten_million / 1e9:.2f}"
    assert float(measured[0]) <= float(measured[1])


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_memory_of_the_manifests_follows_from_their_settings(manifest):
    settings, tasks = of_manifests()
    open_queries = tasks * settings.max_store_bytes / STORED_QUERY_BYTES
    bound = bound_bytes(tasks, settings.memory_tier_bytes, open_queries)
    _, evaluator = pod_of(manifest)
    resources = evaluator["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    limit_bytes = in_bytes(resources["limits"]["memory"])
    assert 1.2 * bound <= limit_bytes < 1.2 * bound + 2**30
    assert f"= {1.2 * bound / 1e9:.1f} GB" in PAGE


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_volumes_of_the_manifests_follow_from_their_settings(manifest):
    settings, tasks = of_manifests()
    assert "bytes of the volume = 2 x T x max_store_bytes + 0.7 GB" in PAGE
    assert settings.max_store_bytes > 0
    needed = 2 * tasks * settings.max_store_bytes + 0.7e9
    whole, _ = pod_of(manifest)
    if "volumeClaimTemplates" in whole:
        (claim,) = whole["volumeClaimTemplates"]
        size = claim["spec"]["resources"]["requests"]["storage"]
    else:
        volumes = whole["template"]["spec"]["volumes"]
        size = next(one["emptyDir"]["sizeLimit"] for one in volumes if one["name"] == "state")
    assert needed <= in_bytes(size) < needed + 2 * 2**30
    assert f"= {needed / 1e9:.1f} GB" in PAGE


def test_the_page_has_the_limits_and_the_traffic_of_the_manifests():
    settings, tasks = of_manifests()
    found = re.search(
        r"limits are (\d+) GiB of memory and (\d+) GiB of disk, in both overlays. The stores have"
        r" room for ([\d.]+) million queries of the benchmark \(([\d,]+) bytes each\):"
        r" (\d+) rankings",
        WORDS,
    )
    memory_gib, disk_gib, millions, each, rate = [text.replace(",", "") for text in found.groups()]
    for manifest in MANIFESTS:
        assert pod_of(manifest)[1]["resources"]["limits"]["memory"] == f"{memory_gib}Gi"
        assert f"{disk_gib}Gi" in (OVERLAYS / manifest).read_text("utf-8")
    assert int(each) == STORED_QUERY_BYTES
    open_queries = tasks * settings.max_store_bytes / STORED_QUERY_BYTES
    assert float(millions) == pytest.approx(open_queries / 1e6, abs=0.05)
    assert int(rate) == int(open_queries / 86_700)
    assert f"for {tasks} partitions" in WORDS


def measured_speed():
    """Pairs per second, and CPU time of one in microseconds, of the load that costs most."""
    result = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    rows = [line for line in result.splitlines() if "| evaluator |" in line]
    found = []
    for row in rows:
        _, _, pairs, cpu, *_ = [cell.strip() for cell in row.strip("|").split("|")]
        found.append((float(cpu), int(pairs.replace(",", ""))))
    cpu, pairs = max(found)
    return pairs, cpu


def test_the_page_has_the_measured_speed_of_the_benchmark():
    pairs, cpu = measured_speed()
    assert f"pairs per second x {round(cpu)} us / 0.5" in PAGE
    assert f"{cpu} us on one core" in WORDS
    assert f"{pairs:,} were measured" in WORDS
    (most,) = re.findall(r"at most ([\d,]+) pairs per second and worker", WORDS)
    assert 0 <= 0.5e6 / cpu - float(most.replace(",", "")) < 1_000


def test_cpu_requests_of_the_manifests_are_enough_at_low_rates():
    table = PAGE.split("| pairs per second | cores | us per pair |\n|---|---|---|\n")[1]
    rows = [line.strip("|").split("|") for line in table.split("\n\n")[0].splitlines()]
    cores = {int(rate.replace(",", "")): float(taken) for rate, taken, _ in rows}
    for (rate, taken), (_, _, each_us) in zip(list(cores.items())[1:], rows[1:], strict=True):
        assert float(each_us.replace(",", "")) == pytest.approx(taken / rate * 1e6, rel=0.01)
    requested = {pod_of(manifest)[1]["resources"]["requests"]["cpu"] for manifest in MANIFESTS}
    (millicores,) = re.findall(r"So the (\d+)m that", WORDS)
    assert requested == {f"{millicores}m"}
    assert max(cores.values()) < int(millicores) / 1000


def test_the_page_has_the_measured_cost_of_learning():
    page = (ROOT / "docs" / "benchmarks-parts.md").read_text("utf-8")
    alone, beside, read, learned = (
        float(line.strip("|").split("|")[1])
        for line in page.split("## Learning in a worker")[1].split("\n## ")[0].splitlines()
        if line.startswith(("| decode", "| the same", "| the leader"))
    )
    assert f"({measured_speed()[1]:.0f} + {beside - alone:.0f}) us / 0.5" in PAGE
    assert f"settled per second x {read:.0f} us + judged ones x {learned:.0f} us" in PAGE
    (bound,) = re.findall(r"at most ([\d,]+) judged queries per second over all", WORDS)
    assert 0 <= 0.5e6 / (read + learned) - float(bound.replace(",", "")) < 100
