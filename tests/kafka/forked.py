"""`python -m evaluator` as a process that is forked from one in which its modules are loaded.

Most of the CPU time of a short worker is for loading modules. A forked process is a complete one:
it runs the same program with its own arguments, environment, files and session. Each program for
forks serves a few, so that sets have different orders.
"""

import contextlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.kafka.broker import _end_with_parent

FORKS = 12
"""This number of processes share a seed of hashes."""
LONGEST = 2**20
_LOCK = threading.Lock()


class Forked:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        out: IO[bytes],
        err: IO[bytes],
        environment: Mapping[str, str],
        most_files: int | None,
    ) -> None:
        self._end, its = os.pipe()
        request = {
            "arguments": [*map(str, arguments)],
            "environment": dict(environment),
            "cwd": str(Path.cwd()),
        }
        text = json.dumps({**request, "most_files": most_files}).encode()
        self._program = _program()  # it ends with the last of its forks that is kept
        self._program.send(text, [out.fileno(), err.fileno(), its])
        os.close(its)
        self._lock = threading.Lock()
        self.pid = self._number()
        self.returncode: int | None = None

    def __del__(self) -> None:
        os.close(self._end)

    def poll(self) -> int | None:
        """The exit code, or None while it runs; negative: the signal that ended it."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired, as `subprocess` does."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        poll = select.poll()  # not `select`, which takes no file from number 1,024 on
        poll.register(self._end, select.POLLIN)
        if self.returncode is None and poll.poll(None if seconds is None else 1_000 * seconds):
            with self._lock:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._number())
        return self.returncode

    def _number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            line += (more := os.read(self._end, 1))
            assert more, "the program that forks has ended"
        return int(line)


def _end(requests: socket.socket, program: subprocess.Popen[bytes]) -> None:
    requests.close()
    program.wait()


class _Program:
    """The program that forks. It ends with this object, and so do its forks."""

    def __init__(self) -> None:
        self.left = FORKS
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EVALUATOR_")}
        with its:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LONGEST)
            self._popen = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=its,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        weakref.finalize(self, _end, self._socket, self._popen)

    def send(self, text: bytes, files: list[int]) -> None:
        socket.send_fds(self._socket, [text], files)


_NEWEST: list[_Program] = []


def _program() -> _Program:
    with _LOCK:
        if not _NEWEST or _NEWEST[0].left == 0:
            _NEWEST[:] = [_Program()]
        _NEWEST[0].left -= 1
        return _NEWEST[0]


def begin(most_files: int | None) -> None:
    """Runs in a new process before its program: it ends with its parent, with this limit of open
    files."""
    _end_with_parent()
    if most_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


def serve(requests: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns it in the forked process, with its files as 1 and 2."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([requests.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, end = running.pop(ready)
                with contextlib.suppress(BrokenPipeError):
                    os.write(end, b"%d\n" % os.waitpid(pid, 0)[1])
                os.close(end)
                os.close(ready)
                continue
            text, files, *_ = socket.recv_fds(requests, LONGEST, 3)
            if not text:
                raise SystemExit
            request, (out, err, end) = json.loads(text), files
            if (pid := os.fork()) == 0:
                os.dup2(out, 1)
                os.dup2(err, 2)
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                requests.detach()
                os.closerange(
                    3, max(*files, *running, *(end for _, end in running.values()), 64) + 1
                )
                return request
            os.write(end, b"%d\n" % pid)
            os.close(out)
            os.close(err)
            running[os.pidfd_open(pid)] = (pid, end)


def main() -> None:
    """Serves the socket that is its standard input; continues as `evaluator` in each fork."""
    request = serve(socket.socket(fileno=os.dup(0)))
    os.setsid()
    begin(request["most_files"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    runpy.run_module("evaluator", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import evaluator.cli.live  # noqa: F401 - all that a worker loads

    main()
