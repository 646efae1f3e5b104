"""State stores in RocksDB: a directory for each task, in the state directory."""

import fcntl
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread, get_native_id
from typing import Final

from rocksdict import Cache, Env

from evaluator.adapters.rocksdb.store import CACHE_BYTES, RocksStateStore
from evaluator.ports import StateInUse, StateUnusable

_LOCK_NAME: Final = "in-use"
_OWNER: Final = "process {} on {}"
_WORK: Final = "snapshot-"
_REPLACED: Final = "-replaced"
_NICE: Final = 10


class RocksStateDirectory:
    """Implements `evaluator.ports.StateDirectory`: `task-0`, `task-1` ... in a locked directory.

    The lock ends with the process. The stores share one block cache, and the threads that flush
    and compact.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self._cache = Cache(CACHE_BYTES)
        starter = Thread(target=_start_background_threads)
        starter.start()
        starter.join()
        self._stores: dict[int, RocksStateStore] = {}

    def hold(self) -> None:
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable.because(
                f"state_dir {self._path} cannot be written: {error.strerror}",
                "Give a writable directory, e.g. --set state_dir=/var/lib/evaluator.",
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 100).decode(errors="replace").strip() or "another process"
            os.close(lock)
            raise StateInUse(
                f"state_dir {self._path} is in use by {owner}. Every worker needs a directory of "
                "its own: end the other one, or give --set state_dir=OTHER."
            ) from None
        except OSError as error:
            os.close(lock)
            raise StateUnusable(
                f"state_dir {self._path} cannot be locked: {error.strerror}. Give a directory on a "
                "local disk, e.g. --set state_dir=/var/lib/evaluator."
            ) from None
        self._lock = lock
        with suppress(OSError):  # the lock is held, although a full disk does not show its owner
            os.ftruncate(lock, 0)
            os.write(lock, f"{_OWNER.format(os.getpid(), os.uname().nodename)}\n".encode())
        for left in self._path.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        for replaced in self._path.glob(f"task-*{_REPLACED}"):  # by a store that was not checked
            place = replaced.with_name(replaced.name.removesuffix(_REPLACED))
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):
                replaced.rename(place)

    def open(self, task: int) -> RocksStateStore:
        self._stores[task] = RocksStateStore(self._of(task), self._cache)
        return self._stores[task]

    def workspace(self) -> Path:
        try:
            return Path(tempfile.mkdtemp(prefix=_WORK, dir=self._path))
        except OSError as error:
            raise StateUnusable(f"{self._path} cannot be written: {error.strerror}") from None

    def copy(self, task: int, folder: Path) -> bytes | None:
        return self._stores[task].copy_to(folder)

    def adopt(self, task: int, folder: Path) -> None:
        place, replaced = self._of(task), self._replaced(task)
        try:
            if place.exists():
                place.rename(replaced)
            folder.rename(place)
        except OSError as error:
            self._bring_back(task)
            raise StateUnusable(f"{place} cannot be replaced: {error.strerror}") from None

    def keep(self, task: int) -> None:
        replaced = self._replaced(task)
        if replaced.exists():
            left = replaced.with_name(f"{_WORK}{replaced.name}")
            try:
                replaced.rename(left)  # at once: a part of a store is never restored
            except OSError as error:
                raise StateUnusable(f"{replaced} cannot be deleted: {error.strerror}") from None
            shutil.rmtree(left, ignore_errors=True)

    def quarantine(self, task: int) -> str:
        place = self._path / f"task-{task}-quarantine"
        try:
            shutil.rmtree(place, ignore_errors=True)
            self._of(task).rename(place)
        except OSError as error:
            message = f"{self._of(task)} cannot be quarantined: {error.strerror}"
            raise StateUnusable(message) from None
        self._bring_back(task)
        return str(place)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _of(self, task: int) -> Path:
        return self._path / f"task-{task}"

    def _replaced(self, task: int) -> Path:
        return self._path / f"task-{task}{_REPLACED}"

    def _bring_back(self, task: int) -> None:
        with suppress(OSError):  # there is none, or `hold` does it at the next start
            self._replaced(task).rename(self._of(task))


def is_in_use(path: Path) -> bool:
    """Whether a process of this machine holds the state directory, as far as its lock file says.

    It takes no lock, which could refuse a worker that starts.
    """
    with suppress(OSError, IndexError):
        owner = (path / _LOCK_NAME).read_text("utf-8", errors="replace").strip()
        pid = owner.split()[1]
        return owner == _OWNER.format(pid, os.uname().nodename) and Path(f"/proc/{pid}").exists()
    return False


def _start_background_threads() -> None:
    """One to flush and one to compact. They inherit the priority of this thread, which is lowered.

    With the priority of the evaluation they take half of a single core for seconds.
    """
    if sys.platform == "linux":  # on other systems threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, get_native_id(), os.nice(0) + _NICE)
    env = Env()  # shared by the stores of the process
    env.set_high_priority_background_threads(1)
    env.set_low_priority_background_threads(1)
