"""Paths of a mapping: the place of a value in a record, and the value there."""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

Step = str | int
"""The name of a member, or an index of an array."""
Steps = tuple[Step, ...]

_TOKEN: Final = re.compile(r"(?P<name>(?:[^.\[\\]|\\.)+)|(?P<dot>\.)|\[(?P<index>[0-9]{1,6})\]")
PATH_FORM: Final = r"a path such as data.items[0].id (`\.` for a dot in a name)"


class Path(NamedTuple):
    """A path as written, the part of a record that it begins in, and its steps.

    The only step of a header is its name; a key without steps is the whole key as text.
    """

    text: str
    part: Literal["value", "key", "header"]
    steps: Steps


def parse_path(text: str) -> Path:
    r"""The path in a text. Raises ValueError.

    >>> parse_path(r"data.items[0].a\.b").steps, parse_path("header:x-session").part
    (('data', 'items', 0, 'a.b'), 'header')
    """
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "header":
        if not rest:
            raise ValueError("the name of the header is missing, e.g. header:x-session")
        return Path(text, "header", (rest,))
    if colon and prefix == "key":
        return Path(text, "key", _steps(rest) if rest else ())
    return Path(text, "value", _steps(text))


def _steps(text: str) -> Steps:
    steps: list[Step] = []
    at, needs_name = 0, True
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["name"] is None) == needs_name:
            raise ValueError(f"{text!r} is not {PATH_FORM}")
        if token["name"] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", token["name"]))
        elif token["index"] is not None:
            steps.append(int(token["index"]))
        needs_name = token["dot"] is not None
        at = token.end()
    if needs_name:
        raise ValueError(f"{text!r} is not {PATH_FORM}")
    return tuple(steps)


def written(steps: Sequence[Step]) -> str:
    """Steps in the form of a path."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = re.sub(r"([.\[\\])", r"\\\1", step)
            text += f".{name}" if text else name
    return text


def walked(value: Any, steps: Sequence[Step]) -> Any:
    """The value at a path in decoded JSON; None if it is missing.

    >>> walked({"a": [{"b": 1}]}, ("a", 0, "b")), walked({"a": "x"}, ("a", "b"))
    (1, None)
    """
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and step < len(value) else None
        if value is None:
            return None
    return value


def shown(value: Any) -> str:
    """A decoded value for an operator: a short scalar as it is, any other value by its kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)[:60]


def found(value: Any, steps: Sequence[Step]) -> str:
    """The value at a path, or the place where the path ends, for an operator.

    >>> found({"a": {"b": "x"}}, ("a", "b", "c")), found({"a": {}}, ("a", "b"))
    ('a.b.c is missing, because a.b is "x"', 'a.b is missing')
    """
    path, here = written(steps), value
    for at, step in enumerate(steps):
        if not isinstance(here, dict if isinstance(step, str) else list):
            return (
                f"{path} is missing, because {written(steps[:at]) or 'the record'} is {shown(here)}"
            )
        if (step not in here) if isinstance(step, str) else (step >= len(here)):
            missing = written(steps[: at + 1])
            return f"{path} is missing" + (
                f", because there is no {missing}" if missing != path else ""
            )
        here = here[step]  # type: ignore[index] # a name or an index
    return f"{path} is {shown(here)}"
