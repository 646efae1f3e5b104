"""The command of Replay in docs/operations.md, except for the address of the broker."""

import json
import re
import shlex
from datetime import UTC, datetime

import pytest

from evaluator.cli import main
from tests.oracle.messages import Raw
from tests.replay.running import judgment, ranking
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.kafka

DAYS = {"before": (9, 30), "first": (10, 1), "last": (10, 31), "after": (11, 1)}


def command_of_the_page(bootstrap):
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = page.split("\n## Replay\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    program, *arguments = shlex.split(block)
    assert program == "evaluator"
    written = [each.replace("kafka://localhost:9092", f"kafka://{bootstrap}") for each in arguments]
    assert written != arguments
    return written


def test_the_command_replays_the_month_that_it_names(make_world, tmp_path, monkeypatch, capsys):
    world = make_world(1)
    at_ms = {
        name: int(datetime(2026, *day, tzinfo=UTC).timestamp() * 1000) for name, day in DAYS.items()
    }
    world.produce({
        ("rankings", 0): [Raw(0, at, ranking(name, at), b"k") for name, at in at_ms.items()],
        ("judgments", 0): [Raw(0, at, judgment(name, at), b"k") for name, at in at_ms.items()],
    })  # fmt: skip
    monkeypatch.setenv("EVALUATOR_TOPIC_PREFIX", world.prefix)
    monkeypatch.chdir(tmp_path)
    code = main(command_of_the_page(world.bootstrap))
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("read 2 rankings and 2 judgments; ")
    assert out.endswith("; files in october\n")
    totals = json.loads((tmp_path / "october" / "totals.json").read_text("utf-8"))
    assert totals["ledger"]["rankings"]["read"] == totals["ledger"]["judgments"]["read"] == 2
    lines = (tmp_path / "october" / "evaluations.ndjson").read_text("utf-8").splitlines()
    assert [json.loads(line)["trace_id"] for line in lines] == ["first", "last"]
