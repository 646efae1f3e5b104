"""Runs jobs in several processes; a process that dies is started again."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from evaluator.cli.wiring import warn
from evaluator.ports import RequestRefused

MAX_STARTS: Final = 3
"""Starts of the process of one job."""

Report = Callable[[int], object]
Work = Callable[[Any, Report], None]
"""The work of a process on a job; it reports its progress."""


class _Started(Struct):
    """The process of a job."""

    job: Any
    process: BaseProcess
    messages: Connection
    n_starts: int
    reported: int = 0
    finished: bool = False


def in_processes(jobs: Sequence[Any], work: Work, *, n_processes: int, on_progress: Report) -> None:
    """Executes *work* on each job, in the order of the jobs and in its own process.

    *work* and the jobs are pickled. The progress of a process that died is reported as negative
    progress, and its job is started again. Raises errors of *work*, and RequestRefused if a job
    died MAX_STARTS times; no process is left.
    """
    left = [(job, 1) for job in reversed(jobs)]
    running: list[_Started] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    try:
        while left or running:
            while left and len(running) < n_processes:
                running.append(_start(context, work, *left.pop()))
            wait([each.messages for each in running])
            for each in running:
                _receive(each, on_progress)
            for each in [each for each in running if each.messages.closed]:
                running.remove(each)
                each.process.join()
                if not each.finished:
                    on_progress(-each.reported)
                    left.append((each.job, _next_start(each)))
    finally:
        for each in running:
            each.process.terminate()
            each.process.join()


def _start(context: Any, work: Work, job: Any, n_starts: int) -> _Started:
    messages, sending = context.Pipe(duplex=False)
    process = context.Process(target=_execute, args=(work, job, sending, Path.cwd()), daemon=True)
    process.start()
    sending.close()  # so that the end of the process ends the messages
    return _Started(job, process, messages, n_starts)


def _receive(started: _Started, on_progress: Report) -> None:
    """Takes the available messages; closes the connection at its end."""
    messages = []
    try:
        while started.messages.poll():
            messages.append(started.messages.recv())
    except (EOFError, ConnectionResetError):
        started.messages.close()
    for message in messages:
        if isinstance(message, Exception):
            raise message
        if message is None:
            started.finished = True
        else:
            started.reported += message
            on_progress(message)


def _next_start(died: _Started) -> int:
    code = died.process.exitcode or 0
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    if died.n_starts >= MAX_STARTS:
        raise RequestRefused(
            f"the process of {died.job} died {MAX_STARTS} times, last by {cause}. If it was killed "
            "for its memory, give a smaller number of --processes."
        )
    warn(f"the process of {died.job} died by {cause}, and is started again.")
    return died.n_starts + 1


def _execute(work: Work, job: Any, sending: Connection, directory: Path) -> None:
    """The main function of a process. It ends with its parent, when it reports next."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes hidden files
    os.chdir(directory)  # the fork server has that of its own start
    try:
        work(job, sending.send)
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        with suppress(OSError):
            sending.send(_picklable(error))
    else:
        sending.send(None)


def _picklable(error: Exception) -> Exception:
    try:
        multiprocessing.reduction.ForkingPickler.loads(
            multiprocessing.reduction.ForkingPickler.dumps(error)
        )
    except Exception:  # noqa: BLE001 - whatever an exception does to be pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
