"""Loads settings from defaults, a TOML file, the environment and `--set`; the last one wins."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.config.kinds import MAX_INTEGER_BITS, ConfigError
from evaluator.config.measures import parse_measures
from evaluator.config.settings import MASK, SPECS, Settings

ENVIRONMENT_PREFIX = "EVALUATOR_"

_SHOWN_CHARS = 80  # of a refused value
_LONG_INTEGER = re.compile(rf"-?[0-9]{{{_SHOWN_CHARS + 1},}}")

# Kubernetes injects variables of every service of the namespace, e.g. for a service `evaluator`:
# EVALUATOR_SERVICE_HOST, EVALUATOR_PORT_9464_TCP_ADDR and EVALUATOR_PORT=tcp://10.0.0.1:9464.
_SERVICE_LINK = re.compile(
    r"EVALUATOR_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://.*")


class Found(NamedTuple):
    """A raw value of a setting and its origin."""

    name: str
    raw: object
    origin: str


def load_settings(
    *,
    config_file: Path | None = None,
    environment: Mapping[str, str],
    assignments: Sequence[str] = (),
) -> Settings:
    """Returns the settings of all sources.

    Args:
        config_file: a TOML file of settings at its top level.
        environment: of the process; names without the prefix are ignored.
        assignments: `name=value` each, the last of a name wins.
    Raises:
        ConfigError: names the setting, its origin and the accepted values.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources = [_from_environment(environment), _from_assignments(assignments)]
    if config_file is not None:
        sources.insert(0, _from_file(config_file))
    for source in sources:
        for name, raw, origin in source:
            values[name] = _read(name, raw, origin)
            origins[name] = origin
    if values.get("mapping") is not None:  # foreign topics get no records from workers
        values.setdefault("heartbeats", False)
    settings = Settings(**values)
    try:
        parse_measures(settings.measures)
    except ValueError as error:
        origin = origins.get("measures", "the default")
        raise ConfigError(f"measures ({origin}): {error}") from None
    return settings


def _from_file(path: Path) -> list[Found]:
    import tomllib  # noqa: PLC0415 - only for a file

    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read: {error.strerror}. Name a TOML file of settings."
        ) from None
    except (ValueError, RecursionError) as error:  # wrong UTF-8 and wrong TOML are ValueErrors
        too_long = "integer string conversion" in str(error)  # a limit of Python, not of TOML
        why = "it has a number that is too long" if too_long else _on_one_line(error)
        if isinstance(error, RecursionError):
            why = "it is nested too deeply"
        raise ConfigError(f"--config {path} is not TOML: {why}.") from None
    for name, raw in table.items():
        if isinstance(raw, dict) and name not in SPECS:
            raise ConfigError(
                f"[{_on_one_line(name)}] ({path}) is a table. Write its settings without a table."
            )
        _require_known(name, str(path), SPECS)
    return [Found(name, raw, str(path)) for name, raw in table.items()]


def _from_environment(environment: Mapping[str, str]) -> list[Found]:
    found: list[Found] = []
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in SPECS}
    for variable, raw in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _is_service_link(variable, raw):
            continue
        _require_known(variable, "the environment", known)
        found.append(Found(known[variable], raw, variable))
    return found


def _is_service_link(variable: str, raw: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_URL.fullmatch(raw) is not None


def _from_assignments(assignments: Sequence[str]) -> list[Found]:
    found: list[Found] = []
    for assignment in assignments:
        name, equals, raw = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {_on_one_line(assignment)} has no value. Write --set name=value, "
                "e.g. --set retention_ms=86400000."
            )
        _require_known(name, "--set", SPECS)
        found.append(Found(name, raw, "--set"))
    return found


def _require_known(name: str, origin: str, known: Iterable[str]) -> None:
    if name in known:
        return
    import difflib  # noqa: PLC0415 - only for an error

    by_folded = {_folded(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(_folded(name[:_SHOWN_CHARS]), by_folded, n=1)
    nearest = f"The nearest one is {by_folded[near[0]]}; " if near else ""
    raise ConfigError(
        f"{_on_one_line(name)} ({origin}) is not a setting. {nearest}docs/settings.md lists all."
    )


def _folded(name: str) -> str:
    """A name without case, hyphens and the prefix, for comparisons."""
    return name.lower().replace("-", "_").removeprefix(ENVIRONMENT_PREFIX.lower())


def _read(name: str, raw: object, origin: str) -> object:
    spec = SPECS[name]
    try:
        return spec.kind.read(raw)
    except ValueError:
        pass
    value = MASK if spec.secret else _on_one_line(raw)
    if spec.refusal and re.fullmatch(r"-?[0-9]+", value):
        raise ConfigError(f"{name} is {value} ({origin}), {spec.refusal}, e.g. {spec.example}.")
    example = spec.example.removesuffix(".")  # of a prefix; the sentence ends with another one
    raise ConfigError(
        f"{name} is {value} ({origin}). Accepted: {spec.kind.accepts}, e.g. {example}."
    )


def _on_one_line(raw: object) -> str:
    """A raw value, shortened and printable, for an error of one line."""
    if isinstance(raw, int) and raw.bit_length() > MAX_INTEGER_BITS:
        return "a number that is too long"
    if isinstance(raw, str) and re.fullmatch(_LONG_INTEGER, raw):
        return "a number that is too long"
    text = str(raw)[:_SHOWN_CHARS]
    return (text if text.isprintable() else ascii(text)) or "empty"
