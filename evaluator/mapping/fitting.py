"""Types of a schema that members of a mapping take, under their names in Protobuf."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from evaluator.mapping.kinds import BOOLEAN, INTEGER, NUMBER, TEXT, TIME
from evaluator.mapping.log_mapping import LogMapping, Member
from evaluator.mapping.paths import Path, Step, written

_FLOATS: Final = frozenset({"float", "double", "decimal"})
_INTEGERS: Final = frozenset(
    f"{form}{bits}" for form in ("int", "uint", "sint", "fixed", "sfixed") for bits in (32, 64)
) | {"int", "long"}
_TAKES: Final = {
    TEXT: _INTEGERS | {"string", "enum", "decimal"},
    NUMBER: _INTEGERS | _FLOATS,
    INTEGER: _INTEGERS,
    BOOLEAN: frozenset({"bool", "boolean"}),
    TIME: _INTEGERS | _FLOATS | {"string"},
}
_IN_TABLES: Final = _INTEGERS | {"string", "enum", "bool", "boolean", "decimal"}

_TIMESTAMP: Final = "google.protobuf.Timestamp"

Type = tuple[str, bool]
"""The name of a type, and whether it is an array of it."""
TypesAt = Callable[[Sequence[Step]], Collection[Type]]


def takes(member: Member) -> tuple[frozenset[str], str]:
    """The types that a member takes, and a text for them."""
    if member.table is not None:
        return _IN_TABLES, "a text, an integer, an enum or a boolean for its table"
    if member.kind == TIME and member.unit == "iso":
        return frozenset({"string"}), "a text in ISO 8601, or another unit"
    return _TAKES[member.kind], member.kind


def refusal(
    member: Member, path: Path, found: Type, *, is_array: bool, named: str = ""
) -> str | None:
    """The reason why a member never takes the type of its path; *named* is its other name."""
    kinds, needed = takes(member)
    kind, found_array = found
    if kind == _TIMESTAMP and member.kind == TIME and member.table is None:
        kinds = frozenset({kind} if member.unit == "ns" else ())
        needed = 'unit = "ns", which is its form here'
    if found_array == is_array and kind in kinds:
        return None
    shown = f"{'repeated ' if found_array else ''}{(named or kind).removeprefix('.')}"
    needed = f"{needed}, repeated" if is_array else needed
    return f"{member.name}: {path.text} is {shown}; needed: {needed}"


def misfit(mapping: LogMapping, types_at: TypesAt) -> str | None:
    """The first member that no record of a schema can give.

    Args:
        mapping: of the topic; other schemas may be in it, whose records are left out.
        types_at: the types that a path can find.
    """
    before: tuple[Step, ...] = ("after",) if mapping.envelope == "debezium" else ()
    rows = before
    if mapping.each is not None:
        rows = (*before, *mapping.each.steps, 0)
        found = types_at((*before, *mapping.each.steps))
        if any(each == ("string", False) for each in found):
            return _first(mapping.of_record(), before, types_at, is_array=False)  # a text of JSON
        if not any(is_array for _, is_array in found):
            shown = " or ".join(sorted(kind for kind, _ in found)) or "missing"
            return f"rows.each: {mapping.each.text} is {shown}; needed: an array"
    return _first(mapping.of_record(), before, types_at, is_array=False) or _first(
        mapping.of_rows(),
        rows,
        types_at,
        is_array=mapping.each is None,
        needed=_needed(mapping, rows, types_at),
    )


def _needed(mapping: LogMapping, rows: Sequence[Step], types_at: TypesAt) -> list[Member]:
    """Members of rows that depend on others: one of score and rank, and all of a group or none."""

    def is_there(member: Member) -> bool:
        found = (types_at((*rows, *path.steps)) for path in member.paths)
        return member.const is not None or any(found)

    order = [mapping.rows[name] for name in ("score", "rank") if name in mapping.rows]
    needed = [] if any(map(is_there, order)) else order
    for members in mapping.row_groups.values():
        if any(map(is_there, members.values())):
            needed += members.values()
    return needed


def _first(
    members: Collection[Member],
    before: Sequence[Step],
    types_at: TypesAt,
    *,
    is_array: bool,
    needed: Collection[Member] = (),
) -> str | None:
    for member in members:
        paths = [path for path in member.paths if path.part == "value"]
        found = [(path, each) for path in paths for each in types_at((*before, *path.steps))]
        whys = [refusal(member, path, each, is_array=is_array) for path, each in found]
        if found and None not in whys:
            return whys[0]
        is_needed = member.is_required or member in needed
        if paths and not found and is_needed and len(paths) == len(member.paths):
            missing = written((*before, *paths[0].steps))
            return f"{member.name}: {missing} is not in the schema; needed: {takes(member)[1]}"
    return None
