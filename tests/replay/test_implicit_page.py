"""The page on implicit feedback: its log, its mapping and its figures."""

import json
import re
from math import log2

import pytest

from evaluator.cli.main import main
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "implicit.md").read_text("utf-8")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with the files of the page."""
    blocks = re.findall(r"```(?:json|toml)\n(.*?)```", PAGE, re.DOTALL)
    names = ("impressions.ndjson", "clicks.ndjson", "shop.toml")
    logs = ("clicked/rankings.ndjson", "clicked/judgments.ndjson")
    (tmp_path / "clicked").mkdir()
    for name, text in zip((*names, *logs), blocks, strict=True):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_documented_commands_give_the_documented_figures(shop, capsys):
    commands, _ = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command in commands.splitlines():
        assert main(command.removeprefix("$ evaluator ").split()) == 0
    assert "2 of 2 judgments are of a ranking" in capsys.readouterr().out
    flat, out = (json.loads((shop / name / "totals.json").read_bytes()) for name in ("flat", "out"))
    members = ("settled_judged", "settled_silent", "settled_unjudged")
    assert [flat["queries"][name] for name in members] == [1, 0, 1]
    assert [out["queries"][name] for name in members] == [1, 1, 0]
    assert means(flat) == {"mrr": (1, pytest.approx(1 / 3)), "ndcg@10": (1, 0.5)}
    assert means(out) == {
        "mrr": (2, pytest.approx((0 + 1 / 3) / 2)),
        "ndcg@10": (2, (0 + log2(2) / log2(4)) / 2),
    }
    lines = (shop / "out" / "settled.ndjson").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row.get("silent") for row in rows] == [True, None]
    assert rows[1]["grades"] == {"socks": 3, "boots": 0, "shoes": 0}


def test_an_action_of_the_table_withdraws_and_a_null_is_refused(shop):
    later = {"search": "s2", "ts": 1763690120000, "item": "socks"}
    with (shop / "clicks.ndjson").open("a") as file:
        file.writelines(f"{json.dumps({**later, 'action': what})}\n" for what in ("return", None))
    mapping = (shop / "shop.toml").read_text()
    (shop / "other.toml").write_text(mapping.replace("purchase = 3", "purchase = 3, return = -1"))
    command = "replay --mapping other.toml --source file://. --out out --set silence=zero"
    assert main(command.split()) == 0
    totals = json.loads((shop / "out" / "totals.json").read_bytes())
    assert totals["queries"]["settled_silent"] == 2  # s2 is withdrawn
    assert totals["dead_letters"]["mapping"] == 1


def test_weighted_clicks_prefer_the_order_that_was_not_shown(shop):
    _, command = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert main(command.strip().removeprefix("$ evaluator ").split()) == 0
    totals = json.loads((shop / "weighted" / "totals.json").read_bytes())["totals"]
    sums = {
        (row["ranker"], row["measure"]): row["sum_units"] / 2**40
        for row in totals
        if row["kind"] == "settled"
    }
    served = {"mrr": 1 + 1 + 1 / 3, "ips_dcg@3": 4, "ips_clicks": 6, "ips_clipped": 0}
    new = {"mrr": 2, "ips_dcg@3": 2 / log2(3) + 4, "ips_clicks": 6, "ips_clipped": 0}
    for ranker, expected in ({"served": served, "new": new}).items():
        found = {measure: n for (name, measure), n in sums.items() if name == ranker}
        assert found == pytest.approx(expected)


@pytest.mark.slow(alone=False)
def test_sums_of_heavy_clicks_are_exact_in_every_file(tmp_path):
    ids = [f"c{n}" for n in range(60)]
    key = {"schema_version": 1, "node_id": "n"}
    rankings = [
        {**key, "trace_id": f"t{n}", "timestamp_ms": 1_763_690_000_000 + n, "candidate_ids": ids,
         "scores": list(range(60, 0, -1)), "propensities": [0.001] * 60, "segments": {"x": "y"}}
        for n in range(300)
    ]  # fmt: skip
    judgments = [
        {**key, "trace_id": f"t{n}", "timestamp_ms": 1_763_690_001_000, "source": "click",
         "grades": dict.fromkeys(ids, 1)}
        for n in range(300)
    ]  # fmt: skip
    for name, rows in (("rankings", rankings), ("judgments", judgments)):
        (tmp_path / f"{name}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = [f"--set={each}" for each in ("measures=ips_clicks", "ips_clip=1000", "segments=x")]
    out, samples = tmp_path / "out", tmp_path / "samples.txt"
    source = f"--source=file://{tmp_path}"
    assert main(["replay", source, f"--out={out}", f"--openmetrics={samples}", *sets]) == 0
    totals = json.loads((out / "totals.json").read_bytes())
    sums = {
        row["kind"]: row["sum_units"]
        for row in (*totals["totals"], *totals["segments"])
        if row["measure"] == "ips_clicks" and row["kind"] == "settled"
    }
    assert sums == {"settled": (300 * 60_000) << 40}  # above 2^63: int64 would wrap
    assert [row["sum_units"] for row in totals["segments"] if row["kind"] == "settled"][:1] == [
        (300 * 60_000) << 40
    ]
    last = [
        line.split()[1]
        for line in samples.read_text().splitlines()
        if line.startswith("evaluator_quality_value_squares_total") and "ips_clicks" in line
    ]
    assert float(last[-1]) == 300 * 60_000**2
    lines = (out / "settled.ndjson").read_text().splitlines()
    assert json.loads(lines[0])["values"]["served"]["ips_clicks"] == 60_000


def means(totals):
    """Queries and mean of two measures, settled."""
    return {
        row["measure"]: (row["queries"], row["mean"])
        for row in totals["totals"]
        if row["kind"] == "settled" and row["measure"] in {"mrr", "ndcg@10"}
    }
