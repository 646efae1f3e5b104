"""`evaluator` as a separate process, observed from outside: log lines, HTTP, exit code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kafka.broker import free_ports
from tests.kafka.forked import Forked, begin
from tests.kafka.world import World
from tests.oracle.oracle import Settings
from tests.waiting import PATIENCE_SECONDS, STOP_SECONDS, until

T = TypeVar("T")
LONG_MS = 600_000
"""A session longer than any test: a machine that pauses for a minute expels no member."""
MODULE = ("-m", "evaluator")


class Process:
    """One `evaluator` command; its stdout and stderr go to files, and *most_files* are open."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        python: Sequence[str] = (sys.executable, *MODULE),
        most_files: int | None = None,
    ) -> None:
        number = len(list(directory.glob("*.err")))
        self.out_path = directory / f"{number}.out"
        self.err_path = directory / f"{number}.err"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EVALUATOR_")}
        environment["EVALUATOR_STATE_DIR"] = str(directory / "state")  # not that of another test
        environment["EVALUATOR_HTTP_PORT"] = "0"  # the default one may be in use
        environment["EVALUATOR_ALARMS"] = "off"  # those tests that need them set them
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self._popen: subprocess.Popen | Forked
            if tuple(python) == (sys.executable, *MODULE):
                self._popen = Forked(
                    arguments, out=out, err=err, environment=environment, most_files=most_files
                )
                return
            self._popen = subprocess.Popen(
                [*python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(begin, most_files),  # noqa: PLW1509 - as for the broker
            )

    @property
    def out(self) -> str:
        return self.out_path.read_text("utf-8")

    @property
    def err(self) -> str:
        return self.err_path.read_text("utf-8")

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """The exit code. A minute in which the whole machine pauses counts as a second."""
        for _ in range(int(seconds)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._popen.wait(1.0)
        pytest.fail(f"still running after {seconds} s:\n{self.err}")

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP; waits until the process has stopped, which may take a moment."""
        self.signal(signal.SIGSTOP)
        until(lambda: state_of(self.pid) in "Tt")

    def end(self) -> None:
        """Ends it at once, if it runs."""
        self._popen.kill()
        self._popen.wait()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Log lines of these events, in order."""
        lines = (line for line in self.err.splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["event"] in names]

    def eventually(self, look: Callable[[], T], *, seconds: float = PATIENCE_SECONDS) -> T:
        """The result of *look* once it is true; fails if the process ends first."""

        def look_while_it_runs() -> T:
            runs = self.running
            if not (found := look()) and not runs:
                pytest.fail(f"ended with {self._popen.returncode}:\n{self.err}")
            return found

        return until(
            look_while_it_runs, seconds=seconds, details=lambda: f"{self.err}\n{self.snapshot()}"
        )

    def snapshot(self) -> str:
        """More about the process, for a test that failed."""
        return ""


class Worker(Process):
    """`evaluator run`, or another command, on the topics with this prefix."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        topic_prefix: str,
        *flags: str,
        command: str = "run",
        python: Sequence[str] = (sys.executable, *MODULE),
        port: int | None = None,
        most_files: int | None = None,
        **settings: object,
    ) -> None:
        self.port = free_ports(1)[0] if port is None else port
        settings = {
            "topic_prefix": topic_prefix,
            "group_id": f"{topic_prefix}group",
            "http_port": self.port,
            "log_format": "json",
            "state_dir": directory / f"state-{self.port}",  # a disk of its own, and empty
            **settings,
        }
        self.settings = settings
        assignments = [part for name in settings for part in ("--set", f"{name}={settings[name]}")]
        where = ("--source", f"kafka://{bootstrap}")
        words = (command, *where, *flags, *assignments)
        super().__init__(directory, *words, python=python, most_files=most_files)

    def get(self, path: str) -> tuple[int, bytes] | None:
        """Status and body, or None without a listener."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return None

    def document(self, path: str) -> dict[str, Any]:
        """The JSON document at *path*; {} without a listener."""
        reply = self.get(path)
        return {} if reply is None else json.loads(reply[1])

    @property
    def totals(self) -> dict[str, Any]:
        return self.document("/totals")

    @property
    def positions(self) -> dict[str, int]:
        return self.totals.get("positions", {})

    @property
    def tasks(self) -> list[int]:
        return self.totals.get("tasks", [])

    def samples(self) -> dict[str, float]:
        """The scrape: value by name with labels."""
        reply = self.get("/metrics")
        assert reply is not None
        lines = (line for line in reply[1].decode().splitlines() if not line.startswith("#"))
        pairs = (line.rpartition(" ") for line in lines)
        return {name: float(value) for name, _, value in pairs}

    def until_read(self, ends: Mapping[str, int], *, seconds: float = PATIENCE_SECONDS) -> None:
        """Until this worker alone has read and committed up to *ends* of all partitions."""
        self.eventually(lambda: self.positions == ends, seconds=seconds)

    def until_ready(self) -> None:
        self.eventually(lambda: (self.get("/readyz") or (0,))[0] == 200)

    def until_unavailable(self, reason: str = "broker unavailable") -> None:
        """Waits until the live process is not ready, for this reason among others."""
        self.eventually(lambda: reason in str(self.document("/readyz").get("reasons")))
        assert (self.get("/livez") or (0,))[0] == 200

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM: the exit code; fails if it takes longer."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def snapshot(self) -> str:
        return f"{self.get('/readyz')}\n{self.get('/status')}\n{self.positions}"


def state_of(pid: int) -> str:
    """The letter of the state of a process in /proc."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]


def arguments_of(settings: Settings) -> dict[str, object]:
    """The settings that change meaning, for `Worker`."""
    names = ("retention_ms", "maturity_ms", "early_ms", "remember_ms", "out_of_orderness_ms")
    return {
        **{name: getattr(settings, name) for name in (*names, "window_ms", "empty")},
        "measures": ",".join(settings.measures),
    }


def checkpoint_totals(world: World, directory: Path) -> dict[str, Any]:
    """The document of `evaluator totals`, from the checkpoints after all workers have ended."""
    settings = {"topic_prefix": world.prefix, **arguments_of(world.settings)}
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    command = Process(directory, "totals", f"--source=kafka://{world.bootstrap}", *flags)
    assert command.wait() == 0, command.err
    found: dict[str, Any] = json.loads(command.out)
    return found
