"""Kinds of settings: each turns a raw value of a file, the environment or `--set` into a typed one.

Raw values are texts or TOML values: integers, booleans, lists.
"""

import re
from collections.abc import Callable
from math import inf, isfinite
from typing import Any, NamedTuple

from msgspec import Struct, field

from evaluator.core.learning.transforms import ACCEPTED, Transform
from evaluator.core.measures import MAX_MEASURES, split_names
from evaluator.core.types.records import MAX_SEGMENT_BYTES, MAX_SEGMENTS, OTHER

MAX_TEXTS = 1_000
MAX_INTEGER_BITS = 8192
"""Size limit of integers; Python refuses to print far longer ones."""


class ConfigError(Exception):
    """Unusable settings; the message has one setting, the reason, and a remedy."""


class Kind(NamedTuple):
    """Accepted values of a setting; `read` raises ValueError for all others."""

    accepts: str
    read: Callable[[object], object]


def integer(minimum: int, maximum: int | None = None) -> Kind:
    """An integer; without a maximum, of up to MAX_INTEGER_BITS bits."""

    def read(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"-?[0-9]+", raw):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise ValueError
        if raw.bit_length() > MAX_INTEGER_BITS or not minimum <= raw <= (maximum or raw):
            raise ValueError
        return raw

    bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return Kind(f"an integer {bounds}", read)


def number(
    *, minimum: float | None = None, above: float | None = None, maximum: float = inf
) -> Kind:
    """A finite number, at least *minimum* or greater than *above*, and at most *maximum*."""

    def read(raw: object) -> float:
        value = _finite(raw)
        below = (minimum is not None and value < minimum) or (above is not None and value <= above)
        if below or value > maximum:
            raise ValueError
        return value

    accepts = f"a number >= {minimum}" if above is None else f"a number > {above}"
    return Kind(accepts if maximum == inf else f"{accepts}, at most {maximum}", read)


def _finite(raw: object) -> float:
    """Raises ValueError."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError
    if isinstance(raw, str) and not re.fullmatch(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?", raw):
        raise ValueError
    try:
        value = float(raw)
    except OverflowError:
        raise ValueError from None
    if not isfinite(value):
        raise ValueError
    return value


def none_or(kind: Kind) -> Kind:
    """The same kind, with "none" or the empty text for "not set"."""
    return Kind(
        f"{kind.accepts}, or none", lambda raw: None if raw in ("none", "") else kind.read(raw)
    )


def choice(*values: str) -> Kind:
    """One of these values."""

    def read(raw: object) -> str:
        if raw not in values:
            raise ValueError
        return str(raw)

    return Kind(" or ".join(values), read)


def text(pattern: str, accepts: str) -> Kind:
    """A text that matches the whole pattern."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(pattern, raw):
            raise ValueError
        raw.encode()  # other bytes of the environment
        return raw

    return Kind(accepts, read)


def _read_host(raw: object) -> str:
    if not isinstance(raw, str) or not raw or not raw.isprintable():
        raise ValueError
    raw.encode("idna")  # as the look-up does
    return raw


def optional(kind: Kind) -> Kind:
    """The same kind, with the empty text for "not set"."""
    return Kind(kind.accepts, lambda raw: None if raw == "" else kind.read(raw))


def _read_switch(raw: object) -> bool:
    switches = {"on": True, "true": True, "off": False, "false": False}
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or raw not in switches:
        raise ValueError
    return switches[raw]


def _read_measures(raw: object) -> tuple[str, ...]:
    parts = split_names(raw) if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError
    names = tuple(part.strip() for part in parts)
    if not all(names) or not 1 <= len(set(names)) <= MAX_MEASURES:
        raise ValueError
    return names


def _read_some_measures(raw: object) -> tuple[str, ...]:
    return () if raw in ("", []) else _read_measures(raw)


def _read_segments(raw: object) -> tuple[str, ...]:
    names = _texts(raw)
    if len(names) > MAX_SEGMENTS or not all(
        name.isprintable() and len(name.encode()) <= MAX_SEGMENT_BYTES for name in names
    ):
        raise ValueError
    return names


def _read_numbers_or_file(raw: object) -> tuple[float, ...] | str:
    if isinstance(raw, str) and raw.endswith(".json") and "\0" not in raw:
        return raw
    parts = raw.split(",") if isinstance(raw, str) and raw else raw or []
    if not isinstance(parts, list):
        raise ValueError
    return tuple(_finite(part.strip() if isinstance(part, str) else part) for part in parts)


def _pairs(raw: object) -> dict[str, Any]:
    """Raw values by unique names. Raises ValueError."""
    if isinstance(raw, str):
        pairs: list[tuple[Any, ...]] = [part.rpartition("=")[::2] for part in split_names(raw)]
        pairs = pairs if raw else []
    elif isinstance(raw, dict):
        pairs = [*raw.items()]
    else:
        raise ValueError
    found = {str(name).strip(): value for name, value in pairs}
    if len(found) < len(pairs) or "" in found:
        raise ValueError
    return found


def _named(accepts: str, read: Callable[[object], object]) -> Kind:
    """Values by unique names; *read* raises ValueError for others."""
    return Kind(accepts, lambda raw: tuple((k, read(v)) for k, v in _pairs(raw).items()))


def named_choices(*choices: str) -> Kind:
    """One of *choices* by unique names."""
    either = " or ".join(f"NAME={choice}" for choice in choices)
    return _named(f"{either}, with commas; or none", choice(*choices).read)


def _read_transforms(raw: object) -> tuple[tuple[str, str], ...]:
    found = {name: str(text).strip() for name, text in _pairs(raw).items()}
    if len(found) > MAX_TEXTS:
        raise ValueError
    for text in found.values():
        Transform.parse(text)
    return tuple(sorted(found.items()))


def _read_count(raw: object) -> int:
    value = number(minimum=0).read(raw)
    if not isinstance(value, float) or not value.is_integer():
        raise ValueError
    return int(value)


def _texts(raw: object) -> tuple[str, ...]:
    """Unique texts. Raises ValueError."""
    parts = raw.split(",") if isinstance(raw, str) and raw else raw or []
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError
    texts = tuple(part.strip() for part in parts)
    "".join(texts).encode()  # other bytes of the environment
    if len(set(texts)) < len(texts) or not all(texts) or len(texts) > MAX_TEXTS:
        raise ValueError
    return texts


def _read_levels(raw: object) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in _texts(raw)]
    if not all(segment and level and level != OTHER for segment, _, level in pairs):
        raise ValueError
    return tuple((segment, level) for segment, _, level in pairs)


def _read_pairs(raw: object) -> tuple[str, ...]:
    texts = _texts(raw)
    pairs = [text.partition("-")[::2] for text in texts]
    if not all(first and second and first != second for first, second in pairs):
        raise ValueError
    return texts


DURATION = integer(0)
NAMED_SHARES = _named(
    "NAME=SHARE with commas, shares from 0 to 1; or none", number(minimum=0, maximum=1).read
)
NAMED_COUNTS = _named("NAME=COUNT with commas, whole numbers from 0; or none", _read_count)
TRANSFORMS = Kind(f"FEATURE={ACCEPTED}, with commas; or none", _read_transforms)
NUMBERS_OR_FILE = Kind(
    "numbers, a list or with commas; or a file, *.json; or none", _read_numbers_or_file
)
SWITCH = Kind("on or off", _read_switch)
MEASURES = Kind(f"1 to {MAX_MEASURES} names of measures, a list or with commas", _read_measures)
SOME_MEASURES = Kind("names out of measures, a list or with commas; or none", _read_some_measures)
SEGMENTS = Kind(
    f"up to {MAX_SEGMENTS} different names of 1 to {MAX_SEGMENT_BYTES} bytes, a list or with "
    "commas",
    _read_segments,
)
NAMES = Kind(f"up to {MAX_TEXTS} names, a list or with commas; or none", _texts)
LEVELS = Kind(f"up to {MAX_TEXTS} SEGMENT=LEVEL, a list or with commas; or none", _read_levels)
PAIRS = Kind(f"up to {MAX_TEXTS} RANKER-RANKER, a list or with commas; or none", _read_pairs)
VARIANTS = Kind(f"up to {MAX_TEXTS} VARIANT-VARIANT, a list or with commas; or none", _read_pairs)
PATH = text(r"[^\0]+", "a path")
URL = text(r"https?://[^\s\"<>]+", "an address that begins with http:// or https://")
FOLDER_URL = text(
    r"(file|s3|gs|abfs|abfss)://[^\s?#:]+",
    "file://, s3://, gs:// or abfs:// and a folder, without a password",
)
LINE = text(r"[^\0\r\n]+", "a text of one line")
GROUP = text(r"[^\0\r\n]{1,1000}", "a text of one line, up to 1000 characters")
HOST = Kind("a host name or an address", _read_host)
_NAME = r"[a-zA-Z0-9._-]{1,249}"
_CHARACTERS = "1 to 249 of the characters a-z A-Z 0-9 . _ -"
TOPIC = text(_NAME, f"a topic: {_CHARACTERS}")
MEMBER = text(_NAME, f"a name: {_CHARACTERS}")
TOPIC_PREFIX = text(r"[a-zA-Z0-9._-]{0,150}", "up to 150 of the characters a-z A-Z 0-9 . _ -")


def as_text(value: object) -> str:
    """A value in the form of the environment; "not set" is the empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(
        f"{part[0]}={part[1]}" if isinstance(part, tuple) else str(part) for part in value
    )


class Spec(Struct, frozen=True):
    """The group, default, accepted values, example and meaning of a setting.

    `refusal` replaces the general error if an integer is too small. A call returns the default:
    this is the default factory of the setting's field.
    """

    group: str
    default: object
    kind: Kind
    example: str
    meaning: str
    refusal: str = ""
    secret: bool = False

    def __call__(self) -> object:
        return self.default


def setting(
    group: str,
    default: object,
    kind: Kind,
    meaning: str,
    *,
    example: str = "",
    refusal: str = "",
    secret: bool = False,
) -> Any:
    """A field of the settings; the default is the example if there is no other."""
    example = example or as_text(default)
    return field(default_factory=Spec(group, default, kind, example, meaning, refusal, secret))
