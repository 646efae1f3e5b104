"""The systemd unit: its options against the program, and the findings of systemd."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.cli import exits
from evaluator.cli.arguments import new_parser
from evaluator.config import load_settings
from tests.tidy.tree import ROOT
from tests.waiting import STOP_SECONDS

UNIT = ROOT / "deploy" / "systemd" / "evaluator@.service"
TEXT = UNIT.read_text("utf-8")
MAP = UNIT.with_name("map.conf").read_text("utf-8")
PROGRAM = "/opt/evaluator/bin/evaluator"
NAME = "EVALUATOR_GROUP_INSTANCE_ID"
MAX_EXPOSURE = 20
"""In tenths, as `systemd-analyze security` counts: below 2.0 is its best class."""


def options(text=TEXT):
    """The values of each option of the unit."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def only(name):
    [value] = options()[name]
    return value


def environment():
    """The variables that the unit sets."""
    return dict(each.split("=", 1) for each in options()["Environment"])


def parsed_command(command):
    """The program of a command of an instance, and its options."""
    command = command.replace("%S", "/var/lib").replace("%i", "9464")
    for name, value in environment().items():
        command = command.replace(f"${{{name}}}", value)
    program, *arguments = shlex.split(command)
    return program, new_parser().parse_args(arguments)


def test_its_command_is_accepted_and_uses_the_state_directory_of_systemd():
    program, given = parsed_command(only("ExecStart"))
    settings = load_settings(environment={}, assignments=given.set)
    assert (program, given.source) == (PROGRAM, "kafka://kafka:9093")
    assert settings.http_port == 9464
    assert settings.state_dir == f"/var/lib/{only('StateDirectory').replace('%i', '9464')}"
    assert only("StateDirectoryMode") == "0700"


def test_a_worker_has_a_name_and_a_session_timeout_longer_than_the_restart_delay():
    given = {n: value for n, value in environment().items() if n.startswith("EVALUATOR_")}
    settings = load_settings(environment=given | {NAME: specified(given[NAME])})
    assert settings.group_instance_id == "host-9464"
    assert settings.session_timeout_ms > 1_000 * float(only("RestartSec").removesuffix("s"))
    assert load_settings(environment={**given, NAME: ""}).group_instance_id is None


def specified(text):
    """With the specifiers of systemd replaced, on the machine `host`."""
    return text.replace("%H", "host").replace("%i", "9464")


def test_an_instance_can_run_the_map_command():
    cleared, command = options(MAP)["ExecStart"]
    assert cleared == "", "a second command would be refused"
    program, given = parsed_command(command)
    assert (program, given.source) == (PROGRAM, "kafka://kafka:9093")
    assert (given.command, given.to) == (("map", "map"), "rankings,judgments")
    assert str(given.mapping) == "/etc/evaluator/mapping.toml"
    assert load_settings(environment={}, assignments=given.set).http_port == 9464


def test_it_is_stopped_and_reloaded_by_the_signals_of_the_program():
    assert "KillSignal" not in options(), "SIGTERM is the default"
    assert float(only("TimeoutStopSec").removesuffix("s")) >= STOP_SECONDS
    assert shlex.split(only("ExecReload"))[1:] == ["-HUP", "$MAINPID"]


def test_it_is_restarted_unless_the_exit_code_is_permanent():
    assert only("Restart") == "always"
    assert [int(code) for code in only("RestartPreventExitStatus").split()] == [exits.USAGE]


def test_a_denied_system_call_at_startup_does_not_end_it():
    assert only("SystemCallErrorNumber") == "EPERM", "setrlimit may be refused, and is not needed"


@pytest.mark.slow
def test_systemd_accepts_it_and_finds_it_confined(tmp_path):
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing; `make system` installs it"
    unit, another = tmp_path / "evaluator@9464.service", tmp_path / "evaluator@9470.service"
    drop_in = tmp_path / "evaluator@9470.service.d" / "map.conf"
    drop_in.parent.mkdir()
    for file, text in ((unit, TEXT), (another, TEXT), (drop_in, MAP)):
        file.write_text(text.replace(PROGRAM, str(Path(sys.executable).with_name("evaluator"))))
    for command in (
        ["verify", "--man=no", unit, another],
        ["security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", unit],
    ):
        done = subprocess.run([program, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr, "an option is misspelt"
