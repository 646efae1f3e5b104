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
    for name, text in zip(
        ("impressions.ndjson", "clicks.ndjson", "shop.toml"), blocks, strict=True
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_give_its_figures(shop, capsys):
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
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


def means(totals):
    """Queries and mean of two measures, settled."""
    return {
        row["measure"]: (row["queries"], row["mean"])
        for row in totals["totals"]
        if row["kind"] == "settled" and row["measure"] in {"mrr", "ndcg@10"}
    }
