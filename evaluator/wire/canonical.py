"""One text for one JSON value (RFC 8785), so that a hash of it is the same in every language."""

import json
from decimal import Decimal
from typing import Any


def canonical(value: Any) -> bytes:
    """The value as RFC 8785 writes it: members by name, no spaces, numbers as ECMAScript does.

    Integers beyond 2^53 become the nearest double, as the RFC has it.

    Raises:
        ValueError: if a number is not finite.

    >>> canonical({"b": [1.0, 1e21, 0.000001, 1e-7], "a": None})
    b'{"a":null,"b":[1,1e+21,0.000001,1e-7]}'
    """
    return _text(value).encode()


def encode_document(document: object, *, indent: int | None = None) -> bytes:
    """JSON of a document whose integers may be of any size, as sums are; compact by default."""
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


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    """As ECMAScript writes it: the fewest digits that read back to the same double."""
    sign, figures, exponent = Decimal(repr(value)).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number in JSON")
    digits = "".join(map(str, figures)).rstrip("0")
    if not digits:
        return "0"
    point = len(figures) + exponent  # how many digits stand before the point
    if 0 < point <= 21:
        whole, part = digits[:point].ljust(point, "0"), digits[point:]
        text = f"{whole}.{part}" if part else whole
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        head = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
        text = f"{head}e{point - 1:+d}"
    return "-" + text if sign else text
