"""The checked mapping of one topic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from evaluator.core.types.records import Log
from evaluator.mapping.kinds import MESSAGE_OF_ROW, RANKING_GROUPS, REQUIRED, ROW_GROUPS
from evaluator.mapping.paths import Path

_GROUPS: Final = frozenset({*RANKING_GROUPS, *ROW_GROUPS})


class Member(NamedTuple):
    """The source of a member of a message.

    The first of `paths` that is not missing counts; with `const` there are none.
    """

    name: str  # as in the file: rows.score
    kind: str
    paths: tuple[Path, ...] = ()
    const: Any = None
    unit: str = "ms"
    add: float = 0
    table: Mapping[str, Any] | None = None

    @property
    def is_required(self) -> bool:
        """Whether every message must have it; segments, features and scorers are optional."""
        *groups, name = self.name.split(".")
        return name in REQUIRED and _GROUPS.isdisjoint(groups)


Members = Mapping[str, Member]


class LogMapping(Struct, frozen=True, kw_only=True):
    """The mapping of one topic: of `[rankings]` or `[judgments]`.

    `groups` and `row_groups` have members by name: `segments`; `features`, `scorers`. `each` is the
    array of the rows; None with rows: parallel arrays. `descriptors` is a descriptor set of
    Protobuf, and `message` the name in it. With `function` all else is empty.
    """

    log: Log
    topic: str | None = None
    format: str = "json"
    registry: str | None = None
    descriptors: bytes | None = None
    message: str = ""
    envelope: str = "none"
    where: Sequence[tuple[Path, Sequence[Any]]] = ()
    present: Sequence[tuple[Path, ...]] = ()
    members: Members = field(default_factory=dict)
    groups: Mapping[str, Members] = field(default_factory=dict)
    has_rows: bool = False
    each: Path | None = None
    rows: Members = field(default_factory=dict)
    row_groups: Mapping[str, Members] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    @property
    def row_is_message(self) -> bool:
        """Whether each row is a message: its members distinguish it from the other rows."""
        return self.log == "judgments" and not MESSAGE_OF_ROW.keys().isdisjoint(self.rows)

    @property
    def several(self) -> bool:
        """Whether a record may give several messages."""
        return self.row_is_message or self.function is not None or self.format == "otlp"

    def of_record(self) -> list[Member]:
        """The members that a record has once."""
        return [*self.members.values(), *_in_groups(self.groups)]

    def of_rows(self) -> list[Member]:
        return [*self.rows.values(), *_in_groups(self.row_groups)]

    def outside_value(self) -> list[Path]:
        """Paths in keys and headers that have no alternative in the value."""
        found = [path for path, _ in self.where if path.part != "value"]
        for paths in self.present:
            if all(path.part != "value" for path in paths):
                found += paths
        for member in self.of_record():
            if all(path.part != "value" for path in member.paths):
                found += member.paths
        return found


def _in_groups(groups: Mapping[str, Members]) -> list[Member]:
    return [member for members in groups.values() for member in members.values()]
