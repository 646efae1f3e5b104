"""No command writes to a file that it reads, not even with --force."""

import argparse
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from evaluator.adapters.files import is_log_file
from evaluator.cli.exits import UsageError
from evaluator.cli.wiring import ARCHIVE, FILES, topic_names
from evaluator.config import Settings
from evaluator.replay.alarms import ALARM_COMMANDS
from evaluator.replay.writing import FILES as RESULTS

Folder = tuple[Path, Callable[[Path], bool]]
"""A folder that is read, and which of the files in it."""


def require_outputs_apart_from_inputs(options: argparse.Namespace, settings: Settings) -> None:
    """Raises UsageError if a path of --out or --openmetrics is an input, also through links."""
    given = vars(options)
    if (out := given.get("out")) is None:
        return
    written = {f"--out {out}": out, **{f"{of} in --out {out}": out / of for of in RESULTS}}
    if (elsewhere := given.get("openmetrics")) is not None:
        written[f"--openmetrics {elsewhere}"] = elsewhere
    names = ("samples", "config", "weights", "schemas")
    learned = settings.initial_weights if isinstance(settings.initial_weights, str) else None
    files = [Path(each) for each in (settings.mapping, learned) if each is not None]
    files += [given[name] for name in names if given.get(name) is not None]
    source, folders = given.get("source"), list(_folders(options, settings))
    for folder, is_read in folders:
        with contextlib.suppress(OSError):  # reported when the directory is read
            files += (each for each in folder.iterdir() if is_read(each))
    for name, path in written.items():
        clash = any(_same(path, each) for each in files)
        clash |= isinstance(source, str) and _is_in_archive(path, source, settings)
        for folder, is_read in folders:
            clash |= _same(path.parent if is_read(path) else out, folder)
        if clash:
            raise UsageError(
                f"{name} is an input of this command. Name another place: inputs are never "
                "written to, not even with --force."
            )


def _folders(options: argparse.Namespace, settings: Settings) -> Iterator[Folder]:
    """The local folders of logs and of results that a command reads."""
    given = vars(options)
    source = given.get("source")
    if isinstance(source, str) and source.startswith(FILES):
        logs = topic_names(settings)
        yield (
            Path(source.removeprefix(FILES)),
            lambda path: is_log_file(path, logs) or path.name == ALARM_COMMANDS,
        )
    results = [given.get("settled"), *given.get("dir", ()), *given.get("directories", ())]
    for each in results:
        if each is not None:
            yield Path(str(each).removeprefix(FILES)), _is_result


def _is_result(path: Path) -> bool:
    return path.name.removesuffix(".gz").removesuffix(".zst") in RESULTS


def _is_in_archive(path: Path, source: str, settings: Settings) -> bool:
    """Whether a path has the name of an object of an archive on a disk."""
    url = re.sub("^(file|local):(//)?", "", source.removeprefix(ARCHIVE).rpartition("::")[2])
    if not source.startswith(ARCHIVE) or "://" in url:
        return False
    real, root = (Path(os.path.realpath(each)) for each in (path, url))
    named = real.name.startswith(tuple(topic_names(settings).values()))
    return named and real.is_relative_to(root)


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # missing or unreadable files are not the same
        return False
