"""The commands of docs/mapping.md print the outputs on the page."""

import json
import re
import shlex

from evaluator.cli import main
from evaluator.mapping.document import read_mapping
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "mapping.md").read_text("utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_the_documented_example_is_mapped_and_evaluated(tmp_path, monkeypatch, capsys):
    read_mapping.cache_clear()  # of another mapping.toml
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    blocks = BLOCK.findall(PAGE)
    impressions, clicks = (text for kind, text in blocks if kind == "json")
    (tmp_path / "logs" / "impressions.ndjson").write_text(impressions)
    (tmp_path / "logs" / "clicks.ndjson").write_text(clicks)
    (tmp_path / "mapping.toml").write_text(next(text for kind, text in blocks if kind == "toml"))
    trial, replay = (text for kind, text in blocks if kind == "console")
    command, _, shown = trial.removeprefix("$ ").partition("\n")
    assert main(shlex.split(command)[1:]) == 5  # an item of the third record has no score
    assert capsys.readouterr().out == shown
    command, _, shown = replay.removeprefix("$ ").partition("\n")
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == shown
    (row,) = map(json.loads, (tmp_path / "results" / "evaluations.ndjson").read_text().splitlines())
    assert row["values"]["served"]["mrr"] == 1 / 2
