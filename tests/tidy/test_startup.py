"""A process loads only the modules of its command: a worker, `--help`, other commands."""

import subprocess
import sys

import pytest

from evaluator.cli.arguments import new_parser
from evaluator.cli.execution import command_of
from tests.tidy.tree import ROOT

FIRST_POLL = """
import os, sys
from evaluator.cli import live, main
from evaluator.adapters import memory

class Source(memory.MemorySource):
    async def poll(self, partitions, **options):
        if partitions:
            print(*sys.modules, sep="\\n", flush=True)
            os._exit(0)
        return await super().poll(partitions, **options)

broker = memory.MemoryBroker(1)
live.KafkaSource = lambda *_, **__: Source(broker)
live.KafkaSink = lambda *_, **__: memory.MemorySink(broker)
sys.exit(main(sys.argv[1:]))
"""
"""`evaluator run` with a broker in the same process."""

NOT_FOR_A_WORKER = (
    "evaluator.adapters.files",
    "evaluator.adapters.minilm",
    "evaluator.cli.administration",
    "evaluator.cli.batch",
    "evaluator.cli.comparison",
    "evaluator.cli.demo",
    "evaluator.cli.leader",
    "evaluator.comparison.paired",
    "evaluator.core.learning.losses",
    "evaluator.core.online.alarm_watch",
    "evaluator.core.online.online_learner",
    "evaluator.core.promotion",
    "evaluator.demo",
    "evaluator.leader",
    "evaluator.library",
    "evaluator.replay",
    "evaluator.wire.messages.models",
    "evaluator.wire.outputs.output_models",
    "evaluator.wire.outputs.schemas",
    "evaluator.wire.weights.weights_record",
    "difflib",
    "importlib.metadata",
    "pydantic",
    "sqlite3",
    "tomllib",
    "tqdm",
)
FOR_HELP = {"cli", "cli.arguments", "cli.options", "cli.exits", "cli.main", "comparison", "version"}


def test_the_packages_that_a_worker_does_not_need_exist():
    ours = [ROOT / name.replace(".", "/") for name in NOT_FOR_A_WORKER if "evaluator." in name]
    assert [
        path for path in ours if not path.is_dir() and not path.with_suffix(".py").exists()
    ] == []


def modules_of(*command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_worker_at_its_first_poll_has_imported_no_unneeded_package(tmp_path):
    settings = [f"--set=state_dir={tmp_path}", "--set=http_port=0"]
    arguments = ["run", "--source", "kafka://localhost:9092", *settings]
    loaded = modules_of("-c", FIRST_POLL, *arguments)
    assert "evaluator.worker.loop" in loaded
    assert not [
        name
        for name in loaded
        for package in NOT_FOR_A_WORKER
        if f"{name}.".startswith(f"{package}.")
    ]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_an_option_that_only_prints_imports_nothing_else(option):
    program = (
        "import sys, atexit; from evaluator.cli import main; "
        f"atexit.register(lambda: print(*sys.modules, sep='\\n')); main(['{option}'])"
    )
    loaded = modules_of("-c", program)
    ours = {name.removeprefix("evaluator.") for name in loaded if name.startswith("evaluator.")}
    assert ours == {*FOR_HELP, "comparison.question"}
    assert "numpy" not in loaded


def test_every_command_of_the_parser_exists():
    commands = [
        parser.get_default("command") for parser in parsers(new_parser()) if not groups_of(parser)
    ]
    assert len(commands) == 29
    assert all(callable(command_of(*command)) for command in commands)


def groups_of(parser):
    return [action.choices for action in parser._actions if isinstance(action.choices, dict)]


def parsers(parser):
    yield parser
    for choices in groups_of(parser):
        for below in choices.values():
            yield from parsers(below)
