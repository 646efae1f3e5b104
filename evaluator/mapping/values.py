"""Conversion of mapped values: texts, numbers and times."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from evaluator.mapping.kinds import BOOLEAN, INTEGER, NUMBER, TEXT, TIME
from evaluator.mapping.log_mapping import Member

PER_MS: Final = {"ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000), "s": (1_000, 1)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS: Final = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Unfit(Exception):
    """A value that a member does not take; the text has the accepted form."""


def text(value: Any) -> str:
    """A text; an integer in decimal."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python limits the digits
            raise Unfit("a shorter integer") from None
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    raise Unfit("a text or an integer")


def number(value: Any) -> float:
    """The nearest double."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Unfit("a number")
    try:
        return float(value)
    except OverflowError:
        raise Unfit("a number that a double can hold") from None


def integer(value: Any) -> int:
    """An integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit("an integer")
    return value


def boolean(value: Any) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise Unfit("true or false")
    return value


def milliseconds(value: Any, unit: str) -> int:
    """Epoch milliseconds, rounded down. A text of digits is a number; without a zone UTC is meant.

    >>> milliseconds("1970-01-01T00:00:00.0019Z", "iso"), milliseconds(1.0019, "s")
    (1, 1001)
    """
    if unit == "iso":
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return (moment - _EPOCH) // timedelta(milliseconds=1)
        except (TypeError, ValueError, OverflowError):
            raise Unfit("a time in ISO 8601, e.g. 2026-01-31T08:00:00Z") from None
    times, per = PER_MS[unit]
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, float | Decimal):
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        if not exact.is_finite():
            raise Unfit("a finite number")
        return int((exact * times / per).to_integral_value("ROUND_FLOOR"))
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit(f"a number of {unit} since 1970")
    return value * times // per


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    TEXT: text,
    NUMBER: number,
    INTEGER: integer,
    BOOLEAN: boolean,
}
PLAIN: Final = {TEXT: str, NUMBER: float, INTEGER: int, BOOLEAN: bool, TIME: None}
"""The type of values that need no conversion."""


def converter(member: Member) -> Callable[[Any], Any]:
    """Converts one value, or raises Unfit; `add` is not added."""
    if member.kind == TIME:
        return lambda value: milliseconds(value, member.unit)
    return _CONVERSIONS[member.kind]


def table_key(value: Any) -> str | None:
    """The text of a value in a table of replacements; None for one that no table has."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return text(value)
    except Unfit:
        return None
