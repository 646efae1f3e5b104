"""The reference path: bytes to one message, or the reason and detail of a dead letter."""

import json
import re
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from evaluator.wire.messages.malformed import Malformed, oversize
from evaluator.wire.messages.models import Message
from evaluator.wire.reading import MAX_NESTING, too_deep
from evaluator.wire.records import MAX_MESSAGE_BYTES

MessageT = TypeVar("MessageT", bound=Message)

_LIMIT_ERRORS: Final = frozenset(
    {"limit", "greater_than", "greater_than_equal", "less_than_equal", "string_too_long"}
    | {"too_long"}
)
_REASONS: Final = {"version": "version", "finite_number": "non_finite"} | dict.fromkeys(
    _LIMIT_ERRORS, "limit"
)
_TEXTS: Final = {
    "missing": "is required and missing",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "literal_error": "must be {expected}",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} bytes of UTF-8",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
_SELF_EXPLAINING: Final = frozenset({"missing", "too_short", "string_too_short", "version"})
_MAX_DETAIL_CHARACTERS: Final = 300
_MAX_INTEGER_DIGITS: Final = 300
_LONE_SURROGATE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class _NotFinite(ValueError):
    """A NaN or Infinity token."""


def read_message(value: bytes, model: type[MessageT]) -> MessageT | Malformed:
    """The message in *value*, or `Malformed`. The size is checked first."""
    text = _read_text(value)
    if isinstance(text, Malformed):
        return text
    members = _read_object(text, deep=too_deep(value))
    if isinstance(members, Malformed):
        return members
    try:
        return model.model_validate(members)
    except ValidationError as error:
        return _refusal(error)


def _read_text(value: bytes) -> str | Malformed:
    if len(value) > MAX_MESSAGE_BYTES:
        return oversize(len(value))
    if not value:
        return Malformed("decode", "the value is empty; a heartbeat is a record without a value")
    if value[0] == 0 and len(value) >= 5:
        schema_id = int.from_bytes(value[1:5], "big")
        return Malformed(
            "decode",
            f"the value starts with Confluent Schema Registry framing (0x00, schema id "
            f"{schema_id}); produce plain JSON, without the registry's serializer",
        )
    if value.startswith(b"\xef\xbb\xbf"):
        return Malformed("decode", "the value starts with a byte order mark; leave it out")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        return Malformed("decode", f"not UTF-8: {error.reason} at byte {error.start}")


def _read_object(text: str, *, deep: bool) -> dict[str, Any] | Malformed:
    """The members of the object in *text*, by strict JSON, unless it nests too deep."""
    if deep:
        return Malformed("limit", f"nested more than {MAX_NESTING} deep")
    for escape in _LONE_SURROGATE.finditer(text):
        if escape["lone"]:
            return Malformed(
                "decode", f"\\{escape['lone']} at character {escape.start()} is half a character"
            )
    try:
        members = json.loads(text, parse_constant=_refuse_constant, parse_int=_read_integer)
    except _NotFinite as error:
        return Malformed("non_finite", str(error))
    except (ValueError, RecursionError) as error:
        return Malformed("decode", f"not JSON: {error}")
    if not isinstance(members, dict):
        return Malformed("schema", f"a message is a JSON object, not {_kind(members)}")
    return members


def _refuse_constant(token: str) -> NoReturn:
    raise _NotFinite(f"{token} is not a number in JSON; every number must be finite")


def _read_integer(digits: str) -> int | float:
    """An integer, or its float64 if it is huge: Python limits the digits of an integer."""
    return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else float(digits)


def _refusal(error: ValidationError) -> Malformed:
    """The first error counts; an unknown version precedes all others."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "version")
    kind = first["type"]
    text = _TEXTS[kind].format_map(first.get("ctx", {})) if kind in _TEXTS else first["msg"]
    where = _where(first)
    got = "" if kind in _SELF_EXPLAINING or not where else f", got {_shown(first['input'])}"
    detail = f"{where} {text}{got}".lstrip()
    if len(detail) > _MAX_DETAIL_CHARACTERS:  # its names may be as long as a message
        detail = detail[: _MAX_DETAIL_CHARACTERS - 3] + "..."
    return Malformed(_REASONS.get(kind, "schema"), detail)


def _where(error: ErrorDetails) -> str:
    """The member, as a path: `scores[3]`, `scorers.bm25`; a key of an object by its object."""
    *steps, last = error["loc"] or ("",)
    if last == "[key]":
        return f"a key of {_path(steps[:-1])}"
    return _path([*steps, last])


def _path(steps: Sequence[int | str]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _shown(value: Any) -> str:
    """The value as JSON if that is short, else its type."""
    if isinstance(value, float) and not isfinite(value):
        return "a number that no float64 holds"
    if isinstance(value, (bool, int, float, str)):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "..."
    return _kind(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
