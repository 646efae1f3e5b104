"""docs/blue-green.md: two evaluators of different meanings on the same inputs, and the switch."""

import json
import tomllib
from dataclasses import replace

import pytest

from evaluator.cli import main
from evaluator.config.kinds import as_text
from tests.kafka.broker import free_ports
from tests.kafka.page import blocks, output_of
from tests.kafka.process import LONG_MS, arguments_of
from tests.kafka.test_worker_again import append_part
from tests.oracle.totals import comparable
from tests.tidy.tree import ROOT
from tests.worker.truth import Truth

pytestmark = pytest.mark.kafka

PAGE = ROOT / "docs" / "blue-green.md"
QUERIES = 40
OF_WORKER = {"topic_prefix", "http_port"}


@pytest.fixture
def settings_of_both(topic_prefix, tmp_path):
    """The settings of blue and green as on the page, with names of the test; also as files."""

    def made(world, green_settings):
        blue_port, green_port = map(str, free_ports(2))
        of_test = {"topic_prefix": world.prefix, "alarms": "off"}
        of_test |= {"session_timeout_ms": str(LONG_MS)}
        blue = {"group_id": f"{topic_prefix}blue", "state_dir": str(tmp_path / "blue-state")}
        blue |= {**of_test, **arguments_of(world.settings), "http_port": blue_port}
        (page,) = blocks(PAGE, "toml")
        green = {name: as_text(value) for name, value in tomllib.loads(page).items()}
        assert green["http_port"] == "9465"
        green = {**blue, **arguments_of(green_settings), **green, "http_port": green_port}
        green["output_prefix"] = f"{topic_prefix}{green['output_prefix']}"
        green["group_id"] = f"{topic_prefix}{green['group_id']}"
        green["state_dir"] = str(tmp_path / green["state_dir"])
        for name, each in (("blue", blue), ("green", green)):
            lines = [f"{key} = {json.dumps(str(value))}\n" for key, value in each.items()]
            (tmp_path / f"{name}.toml").write_text("".join(lines), "utf-8")
        return blue, green

    return made


def test_green_takes_over_from_blue_and_each_has_the_totals_of_its_own_meaning(
    make_world, start, kafka, settings_of_both, tmp_path, capsys
):
    world = make_world(2)
    of_green = replace(world.settings, maturity_ms=5_000, measures=("ndcg@10", "mrr"))
    blue_settings, green_settings = settings_of_both(world, of_green)
    create, run, wait, totals, compare, after = blocks(PAGE, "sh")
    assert run == "evaluator run --source kafka://localhost:9092 --config green.toml\n"

    def started(settings):
        own = {name: value for name, value in settings.items() if name not in OF_WORKER}
        return start(world, port=int(settings["http_port"]), **own)

    def executed(commands):
        commands = commands.replace("localhost:9465", f"127.0.0.1:{green_settings['http_port']}")
        commands = commands.replace("2026-11-01", "2001-01-01").replace("2026-11-08", "2002-01-01")
        return output_of(commands, kafka, world.prefix, tmp_path, settings={})

    def truths():
        inputs = world.inputs()
        return [Truth(inputs, each, world.prefix) for each in (world.settings, of_green)]

    append_part(world, 0, 0.4, n_queries=QUERIES)
    blue = started(blue_settings)
    blue.until_read(world.ends())
    created = executed(create)
    assert created.count(f"created {green_settings['output_prefix']}") == 9
    assert "two evaluators" not in created
    check_green_is_refused_in_the_group_of_blue(world, start, blue_settings, tmp_path, capsys)

    green = started(green_settings)
    append_part(world, 0.4, 0.6, n_queries=QUERIES)
    executed(wait)
    for worker, truth in zip((blue, green), truths(), strict=True):
        worker.until_read(world.ends())
        assert comparable(worker.totals) == truth.totals
    executed(totals)
    assert "ndcg@10" in executed(compare)

    assert blue.stop() == 0
    left = truths()[0].totals
    green_settings["heartbeats"] = "on"
    append_part(world, 0.6, 0.8, n_queries=QUERIES)
    assert green.stop() == 0
    green = started(green_settings)
    append_part(world, 0.8, 1, n_queries=QUERIES)
    green.until_read(world.ends())
    truth = truths()[1]
    assert comparable(green.totals) == truth.totals
    of_outputs = make_world(2, prefix_end="green.", create=False)
    truth.check_outputs(of_outputs.outputs(), once=True)

    assert comparable(json.loads(executed(after))) == left
    back = started(blue_settings)
    back.until_read(world.ends())
    truth = truths()[0]
    assert comparable(back.totals) == truth.totals
    truth.check_outputs(world.outputs(), once=True)


def check_green_is_refused_in_the_group_of_blue(world, start, blue_settings, tmp_path, capsys):
    """As in a rolling update with another meaning."""
    group = blue_settings["group_id"]
    there = {"group_id": group, "state_dir": tmp_path / "refused"}
    refused = start(world, **{**arguments_of(world.settings), **there, "measures": "mrr"})
    assert refused.wait() == 3
    assert f"Group {group} has a worker with the fingerprint" in refused.err
    check = ["check", "--source", f"kafka://{world.bootstrap}"]
    check += ["--config", str(tmp_path / "green.toml"), "--set", f"group_id={group}"]
    assert main(check) == 5
    assert f"Group {group} has a worker with the fingerprint" in capsys.readouterr().out
    assert main(["leader", *check[1:], "--set", "http_port=0", "--set", "alarms=on"]) == 3
    assert f"Group {group} has a worker with the fingerprint" in capsys.readouterr().err
    check[-1:] = [f"group_id={group}-other", "--set", "output_prefix="]
    assert main(check) == 0
    assert "two evaluators would write to the same topics" in capsys.readouterr().out
    check[4] = str(tmp_path / "blue.toml")  # of the same meaning
    assert main(check) == 0
    assert "two evaluators would write to the same topics" in capsys.readouterr().out
