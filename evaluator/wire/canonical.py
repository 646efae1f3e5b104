"""JSON writers: canonical JSON (RFC 8785), for checksums, and plain documents."""

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final

_string: Final = json.JSONEncoder(ensure_ascii=False).encode
"""A string in JSON."""


def checksum_of(record: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of the canonical JSON of a record without its `checksum`."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(canonical(rest)).hexdigest()


def canonical(value: Any) -> bytes:
    """The value in RFC 8785: members by name, no spaces, numbers as in ECMAScript.

    Integers beyond 2^53 become the nearest double, as in the RFC.

    Raises:
        ValueError: if a number is not finite.

    >>> canonical({"b": [1.0, 1e21, 0.000001, 1e-7], "a": None})
    b'{"a":null,"b":[1,1e+21,0.000001,1e-7]}'
    """
    return _text(value).encode()


def encode_document(document: object, *, indent: int | None = None) -> bytes:
    """JSON of a document with integers of any size, as sums are; compact by default."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    return text.encode()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_string(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return _number(float(value)) if isinstance(value, int | float) else _string(value)


def _number(value: float) -> str:
    """As in ECMAScript: the fewest digits that read back to the same double."""
    if not isfinite(value):
        raise ValueError(f"{value} is not a number in JSON")
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0") if value else "0"
    sign, figures, exponent = Decimal(text).as_tuple()
    digits = "".join(map(str, figures)).rstrip("0")
    point = len(figures) + int(exponent)  # digits before the decimal point
    if 0 < point <= 21:
        text = digits.ljust(point, "0")
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        text = f"{digits[0]}{fraction}e{point - 1:+d}"
    return "-" + text if sign else text
