"""Reads a Dockerfile: its stages, and the steps of each with variables substituted.

Only the instructions that this project's Dockerfile uses are supported; any other is refused, so
that no step is skipped silently.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

RUNS = ("RUN", "COPY")
"""Instructions that change the tree."""
KNOWN = {
    *RUNS, "ARG", "FROM", "ENV", "WORKDIR", "USER", "LABEL",
    "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD",
}  # fmt: skip


class NotUnderstood(Exception):
    """The Dockerfile has an instruction that this reader does not support."""


class Step(NamedTuple):
    """A step with the working directory and the environment in which it is executed."""

    word: str
    flags: Mapping[str, str]
    text: str
    workdir: str
    environment: Mapping[str, str]


@dataclass
class Stage:
    """A FROM and the instructions after it; the settings are those at its end."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    stop_signal: str = ""
    health: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def stages_of(text: str, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of a Dockerfile; *arguments* are those of `--build-arg`.

    Raises:
        NotUnderstood: with the line that is not supported.
    """
    given = dict(arguments or {})
    known: dict[str, str] = {}
    stages: list[Stage] = []
    for line in _lines(text):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word not in KNOWN or "<<" in rest:
            raise NotUnderstood(line)
        if word == "ARG":
            name, _, default = rest.partition("=")
            known[name] = given.get(name, default.strip('"'))
        elif word == "FROM":
            base, _, name = _filled(rest, known).partition(" AS ")
            stages.append(Stage(name=name, base=base))
        elif not stages:
            raise NotUnderstood(line)
        else:
            _add(stages[-1], word, rest, known)
    return stages


def _lines(text: str) -> list[str]:
    """Instructions, each on one line, without comments, even between continued lines."""
    kept = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    return re.sub(r"\\\n\s*", " ", "\n".join(kept)).splitlines()


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], text)


def _add(stage: Stage, word: str, rest: str, known: Mapping[str, str]) -> None:
    values = {**known, **stage.environment}
    if word in RUNS:
        flags, rest = _flags(rest)
        if word == "COPY":
            rest = _filled(rest, values)
        stage.steps.append(Step(word, flags, rest, stage.workdir, dict(stage.environment)))
    elif word in {"ENV", "LABEL"}:
        pairs = dict(pair.split("=", 1) for pair in shlex.split(_filled(rest, values)))
        (stage.environment if word == "ENV" else stage.labels).update(pairs)
    elif word == "WORKDIR":
        stage.workdir = _filled(rest, values)
    elif word == "USER":
        stage.user = _filled(rest, values)
    elif word == "STOPSIGNAL":
        stage.stop_signal = rest
    elif word == "HEALTHCHECK":
        stage.health = _exec_form(_flags(rest)[1].removeprefix("CMD "))
    elif word == "ENTRYPOINT":
        stage.entrypoint = _exec_form(rest)
    elif word == "CMD":
        stage.command = _exec_form(rest)


def _flags(text: str) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}
    while found := re.match(r"--([a-z-]+)=(\S+)\s+", text):
        flags[found[1]] = found[2]
        text = text[found.end() :]
    return flags, text


def _exec_form(text: str) -> list[str]:
    """A command in exec form. Raises NotUnderstood for a command in shell form."""
    try:
        words = json.loads(text)
    except ValueError:
        raise NotUnderstood(f"{text} is not in exec form, [...]") from None
    return [str(word) for word in words]
