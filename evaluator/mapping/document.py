"""The mapping file: TOML to a checked mapping; errors name the line and the accepted values."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, NoReturn

from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.framing import registry_url
from evaluator.mapping.kinds import (
    INTEGER,
    JUDGMENT,
    NUMBER,
    QUERY,
    RANKING,
    RANKING_GROUPS,
    RANKING_ROW,
    ROW_GROUPS,
    TIME,
    UNITS,
    Kinds,
    fits,
)
from evaluator.mapping.lines import lines_of
from evaluator.mapping.log_mapping import LogMapping, Member, Members
from evaluator.mapping.paths import PATH_FORM, Path, parse_path
from evaluator.ports import RequestRefused

GROUP: Final = "evaluator.mappings"
"""Entry points of this group are functions by name: a `Record` to a list of messages."""

ENVELOPES: Final = ("none", "cloudevents", "debezium")
FORMATS: Final = ("json", "otlp", "avro", "protobuf")
_SCHEMAS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "avro": [("registry",)],
    "protobuf": [("registry",), ("descriptor_set", "message")],
}
"""Further members that formats need: one of these lists."""
MAX_DESCRIPTOR_BYTES: Final = 16 << 20

_OF_TABLE: Final = tuple(
    "topic format registry descriptor_set message envelope where present rows function".split()
)

_PLACES: Final = frozenset({"topic", "registry", "descriptor_set"})
"""Members that do not change the meaning of a record."""

_FORMS: Final = 'a path, a list of paths, or { path = "...", const, unit, add, table }'


class MappingRefused(RequestRefused):
    """An unusable mapping; the message has the file, the line, and the accepted values."""


class MappingDocument(NamedTuple):
    """A checked mapping file, and the hash of its meaning."""

    logs: Mapping[Log, LogMapping]
    hash: str

    @property
    def registry(self) -> str | None:
        """The registry of all framed records."""
        return next((each.registry for each in self.logs.values() if each.registry), None)


@cache
def read_mapping(path: FilePath) -> MappingDocument:
    """The mapping in a file, read once. Raises MappingRefused."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise MappingRefused(
            f"--mapping {path} cannot be read: {why}. Name a TOML file; `evaluator mapping "
            "presets` lists examples."
        ) from None
    return read_document(text, str(path))


def read_document(text: str, name: str) -> MappingDocument:
    """The mapping in a TOML text; *name* is that of its file. Raises MappingRefused."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MappingRefused(f"{name} is not TOML: {error}") from None
    read = _Reader(name, text)
    read.require_known(document, LOGS, ())
    if not document:
        read.refuse((), "is empty", "a table [rankings], [judgments], or both")
    logs = {log: read.log(log, document[log]) for log in LOGS if log in document}
    if len({each.registry for each in logs.values()} - {None}) > 1:
        read.refuse(("judgments", "registry"), "is another one", "one registry for both")
    meaning = {
        log: _meaning_of(document[log], logs[log]) for log in sorted(logs, key=list(document).index)
    }
    return MappingDocument(logs, hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16])


class _Reader:
    """Checks the tables of one file."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = lines_of(text)

    def refuse(self, at: tuple[str, ...], what: str, accepted: str) -> NoReturn:
        """Raises MappingRefused with the line of the member *at*."""
        known = [at[:n] for n in range(len(at), 0, -1) if at[:n] in self._lines]
        where = f"{self._name}:{self._lines[known[0]]}" if known else self._name
        raise MappingRefused(
            f"{where}: {' '.join(filter(None, ('.'.join(at), what)))}. Accepted: {accepted}."
        )

    def require_known(self, table: Any, known: Sequence[str], at: tuple[str, ...]) -> None:
        """Refuses a value that is not a table, and unknown members."""
        if not isinstance(table, dict):
            self.refuse(
                at, f"is {_shown(table)}, not a table", f"[{'.'.join(at)}] with {', '.join(known)}"
            )
        for name in table:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                nearest = f"{near[0]} (nearest), " if near else ""
                others = ", ".join(each for each in known if each not in near)
                self.refuse((*at, name), "is not known here", nearest + others)

    def log(self, log: Log, table: Any) -> LogMapping:
        """The mapping of one topic."""
        rankings = log == "rankings"
        kinds, groups = (RANKING, RANKING_GROUPS) if rankings else (JUDGMENT, {})
        self.require_known(table, (*_OF_TABLE, *kinds, *groups), (log,))
        topic = self._text(table, "topic", log)
        if "function" in table:
            return self._function(log, table, topic)
        of_format = self._format(table, log)
        members = self._members(table, kinds, (log,))
        rows = table.get("rows")
        has_rows = rows is not None
        row_kinds, row_groups = (RANKING_ROW, ROW_GROUPS) if rankings else (JUDGMENT, {})
        found: dict[str, Any] = {}
        if has_rows:
            at = (log, "rows")
            self.require_known(rows, ("each", *row_kinds, *row_groups), at)
            each = self._path(rows["each"], (*at, "each")) if "each" in rows else None
            found = {
                "each": each,
                "rows": self._members(rows, row_kinds, at),
                "row_groups": self._groups(rows, row_groups, at),
            }
        mapping = LogMapping(
            log=log,
            topic=topic,
            where=self._where(table, log),
            present=self._present(table, log),
            members=members,
            groups=self._groups(table, groups, (log,)),
            has_rows=has_rows,
            **of_format,
            **found,
        )
        self._require(mapping, "candidate_id" if rankings else "candidate_id grade")
        return mapping

    def _require(self, mapping: LogMapping, of_rows: str) -> None:
        """Refuses missing members, those given twice, and those that rows cannot have."""
        log = mapping.log
        if log == "rankings" and not mapping.has_rows:
            self.refuse((log,), "has no rows", f"a table [{log}.rows] with candidate_id")
        for name in (*QUERY, *of_rows.split()):
            given = (name in mapping.members) + (name in mapping.rows)
            if given == 2:
                self.refuse((log, "rows", name), f"is also beside [{log}]", "one of the two")
            if not given and name != "timestamp_ms":
                self.refuse((log,), f"has no {name}, which is required", f'{name} = "path"')
        if mapping.has_rows and "candidate_id" in mapping.members:
            self.refuse((log, "candidate_id"), "is beside rows", "candidate_id below [rows]")
        if mapping.each is not None and mapping.each.part != "value":
            self.refuse((log, "rows", "each"), "is not in the value", PATH_FORM)
        if mapping.row_is_message and mapping.each is None:
            self.refuse((log, "rows"), "gives several messages", "each, the array of the rows")
        for member in mapping.of_rows():
            at = (*member.name.split("."),)
            if any(path.part != "value" for path in member.paths):
                self.refuse(at, "is in a row, which has no key or headers", PATH_FORM)
            if mapping.each is None and (member.const is not None or len(member.paths) > 1):
                self.refuse(
                    at, "is one of parallel arrays", "one path; or each, the array of the rows"
                )
            if log == "rankings" and member.table is not None:
                self.refuse(at, "has a table, which would leave out rows of a ranking", _FORMS)

    def _function(self, log: Log, table: dict[str, Any], topic: str | None) -> LogMapping:
        name = self._text(table, "function", log)
        for other in table:
            if other not in {"function", "topic"}:
                self.refuse((log, other), "is beside function", "topic and function")
        points = [point for point in entry_points(group=GROUP) if point.name == name]
        if len(points) != 1:
            installed = sorted({point.name for point in entry_points(group=GROUP)})
            what = f"{_shown(name)} names {len(points)} functions of the group {GROUP}"
            self.refuse((log, "function"), what, ", ".join(installed) or "none is installed")
        try:
            function = points[0].load()
        except Exception as error:  # noqa: BLE001  # any error of an import
            self.refuse((log, "function"), f"cannot be loaded: {error!r}", "a function of a record")
        return LogMapping(log=log, topic=topic, function=function)

    def _text(self, table: dict[str, Any], name: str, log: Log) -> str | None:
        value = table.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            self.refuse((log, name), f"is {_shown(value)}", "a text that is not empty")
        return value

    def _choice(self, table: dict[str, Any], name: str, known: Sequence[str], log: Log) -> str:
        value = table.get(name, known[0])
        if value not in known:
            self.refuse((log, name), f"is {_shown(value)}", ", ".join(known))
        return str(value)

    def _format(self, table: dict[str, Any], log: Log) -> dict[str, Any]:
        """The format, and where its schemas are."""
        form = self._choice(table, "format", FORMATS, log)
        accepted = _SCHEMAS.get(form, [()])
        given = tuple(name for name in ("registry", "descriptor_set", "message") if name in table)
        if given not in accepted:
            beside = f"is {form} beside {' and '.join(given) or 'no schema'}"
            self.refuse((log, "format"), beside, "; or ".join(map(" and ".join, accepted)) or form)
        only = {"otlp": ("none",), "protobuf": ("none", "debezium")}.get(form, ENVELOPES)
        envelope = self._choice(table, "envelope", ENVELOPES, log)
        if envelope not in only:
            self.refuse((log, "envelope"), f"is beside format = {form}", ", ".join(only))
        found: dict[str, Any] = {"format": form, "envelope": envelope}
        if "message" in given:
            found["message"] = self._text(table, "message", log)
            found["descriptors"] = self._file(table, "descriptor_set", log)
        try:
            if "registry" in given:
                found["registry"] = registry_url(str(table["registry"]))
        except ValueError as error:
            self.refuse((log, "registry"), f"{error}", "https://HOST:PORT")
        return found

    def _file(self, table: dict[str, Any], name: str, log: Log) -> bytes:
        """The content of a file in the folder of the mapping."""
        path = FilePath(self._name).parent / (self._text(table, name, log) or "")
        what = f"a file of at most {MAX_DESCRIPTOR_BYTES} bytes, of protoc --descriptor_set_out"
        try:
            with path.open("rb") as file:
                content = file.read(MAX_DESCRIPTOR_BYTES + 1)
        except OSError as error:
            self.refuse((log, name), f"cannot be read: {path}: {error.strerror}", what)
        if len(content) > MAX_DESCRIPTOR_BYTES:
            self.refuse((log, name), f"is too large: {path}", what)
        return content

    def _path(self, value: Any, at: tuple[str, ...]) -> Path:
        if not isinstance(value, str):
            self.refuse(at, f"is {_shown(value)}", PATH_FORM)
        try:
            return parse_path(value)
        except ValueError as error:
            self.refuse(at, f": {error}", f"{PATH_FORM}, header:NAME, key: or key:PATH")

    def _where(self, table: dict[str, Any], log: Log) -> list[tuple[Path, list[Any]]]:
        found: list[tuple[Path, list[Any]]] = []

        def add(conditions: Any, before: str, at: tuple[str, ...]) -> None:
            if isinstance(conditions, dict) and conditions:
                for name, inner in conditions.items():  # a dotted key of TOML is nested tables
                    add(inner, f"{before}.{name}" if before else name, at)
                return
            if not before or not isinstance(conditions, list) or not conditions:
                self.refuse(at, f"has {_shown(conditions)}", "{ path = [values] }")
            for value in conditions:
                if not isinstance(value, str | int | float):
                    self.refuse(at, f"has the value {_shown(value)}", "texts, numbers, true, false")
            found.append((self._path(before, at), conditions))

        if "where" in table:
            add(table["where"], "", (log, "where"))
        return found

    def _present(self, table: dict[str, Any], log: Log) -> list[tuple[Path, ...]]:
        """Lists of paths; of each list one path must find something."""
        given, at = table.get("present", []), (log, "present")
        if not isinstance(given, list) or ("present" in table and not given):
            self.refuse(at, f"is {_shown(given)}", '["path", ["path", "or path"], ...]')
        alternatives = [each if isinstance(each, list) else [each] for each in given]
        if [] in alternatives:
            self.refuse(at, "has an empty list", '["path", ["path", "or path"], ...]')
        return [tuple(self._path(path, at) for path in each) for each in alternatives]

    def _groups(
        self, table: dict[str, Any], groups: Kinds, at: tuple[str, ...]
    ) -> dict[str, Members]:
        found = {}
        for name, kind in groups.items():
            given = table.get(name, {})
            if not isinstance(given, dict):
                self.refuse((*at, name), f"is {_shown(given)}", '{ name = "path", ... }')
            found[name] = self._members(given, dict.fromkeys(given, kind), (*at, name))
        return {name: members for name, members in found.items() if members}

    def _members(self, table: dict[str, Any], kinds: Kinds, at: tuple[str, ...]) -> Members:
        return {
            name: self._member(table[name], kinds[name], (*at, name))
            for name in table
            if name in kinds
        }

    def _member(self, value: Any, kind: str, at: tuple[str, ...]) -> Member:
        alone = "const" if type(value) is int and at[-1] == "exposed_top" else "path"
        given = value if isinstance(value, dict) else {alone: value}
        options = ["path", "const", "table"]
        options += ["unit"] if kind == TIME else ["add"] if kind in {NUMBER, INTEGER} else []
        for name in given:
            if name not in options:
                self.refuse(
                    at, f"has {name}, which a member of this kind does not take", ", ".join(options)
                )
        if ("path" in given) == ("const" in given) or {"const"} < given.keys():
            self.refuse(at, f"is {_shown(value)}", f"{_FORMS}; a const stands alone")
        paths = given.get("path", [])
        paths = paths if isinstance(paths, list) else [paths]
        if not paths and "path" in given:
            self.refuse(at, "has no path", _FORMS)
        unit, add, table = given.get("unit", "ms"), given.get("add", 0), given.get("table")
        if unit not in UNITS:
            self.refuse(at, f"has the unit {_shown(unit)}", ", ".join(UNITS))
        if not fits(add, kind) and "add" in given:
            self.refuse(at, f"adds {_shown(add)}", kind)
        consts = [given["const"]] if "const" in given else []
        if table is not None:
            if not isinstance(table, dict) or not table:
                self.refuse(at, f"has the table {_shown(table)}", "{ value = replacement, ... }")
            consts = list(table.values())
        for const in consts:
            if not fits(const, INTEGER if kind == TIME else kind):
                self.refuse(at, f"has {_shown(const)}", f"{kind} as its value")
        parsed = tuple(self._path(path, at) for path in paths)
        const = given.get("const")
        if const is not None and kind == NUMBER:
            const = float(const)
        return Member(".".join(at), kind, parsed, const, unit, add, table)


def _meaning_of(table: dict[str, Any], mapping: LogMapping) -> dict[str, Any]:
    """The hashed content: the members of a table, and the files and functions that they name."""
    meaning = {name: value for name, value in table.items() if name not in _PLACES}
    if "function" in table:
        meaning["package"] = _package_of(table["function"])
    if mapping.descriptors is not None:
        meaning["descriptors"] = hashlib.sha256(mapping.descriptors).hexdigest()
    return meaning


def _shown(value: Any) -> str:
    if isinstance(value, date | time):
        return f"the date {value}"
    return json.dumps(value, default=str, ensure_ascii=False)[:80]


def _package_of(function: str) -> list[str]:
    """Distribution and version of an entry point: part of the hash."""
    return [
        "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        for point in entry_points(group=GROUP)
        if point.name == function
    ]
