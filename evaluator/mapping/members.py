"""Members of a message: found in a record, replaced by a table, and converted."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from evaluator.mapping.log_mapping import LogMapping, Member
from evaluator.mapping.paths import Path, Steps, found, shown, walked, written
from evaluator.mapping.record import Record
from evaluator.mapping.values import PLAIN, Unfit, converter, table_key
from evaluator.wire.reading import too_deep

MAX_DETAIL_CHARACTERS: Final = 300

Need = Literal["every", "all or none", "any"]
"""Which values of a column may be missing: none, all, or any."""

Tree = dict[str, "Tree"]
"""The members that paths name, and those in them."""
Getter = Callable[[Any], Any]
RecordGetter = Callable[[Any, Record], Any]


class LeavesOut(Exception):
    """The record gives no message; the text has the reason."""


class RecordRefused(Exception):
    """The record is refused. The detail is a function, called for plain objects only."""

    def __init__(self, detail: Callable[[], str]) -> None:
        self._detail = detail

    def detail(self) -> str:
        """The detail of the dead letter."""
        text = self._detail()
        if len(text) > MAX_DETAIL_CHARACTERS:
            text = text[: MAX_DETAIL_CHARACTERS - 3] + "..."
        return text

    @classmethod
    def at(cls, name: str, root: Any, steps: Steps, needed: str) -> "RecordRefused":
        """The refusal of a value at a path."""
        return cls(lambda: f"{name}: {found(root, steps)}; needed: {needed}")


def tree_of(mapping: LogMapping) -> Tree:
    """The members that the paths of a mapping name; indices are left out."""
    paths = [path for member in mapping.of_record() for path in member.paths]
    paths += [path for path, _ in mapping.where]
    paths += [path for alternatives in mapping.present for path in alternatives]
    each: Steps = ()
    if mapping.each is not None:
        paths.append(mapping.each)
        each = mapping.each.steps
    named = [path.steps for path in paths if path.part == "value"]
    named += [(*each, *path.steps) for member in mapping.of_rows() for path in member.paths]
    tree: Tree = {}
    for steps in named:
        here = tree.setdefault("after", {}) if mapping.envelope == "debezium" else tree
        for step in steps:
            if isinstance(step, str):
                here = here.setdefault(step, {})
    return tree


def merge(into: Tree, other: Tree) -> None:
    """Adds the members of another tree."""
    for name, inner in other.items():
        merge(into.setdefault(name, {}), inner)


def walker(steps: Steps) -> Getter:
    """The getter of the value at a path in a decoded record or row."""
    first = steps[0]
    if len(steps) > 1 or not isinstance(first, str):
        return lambda value: walked(value, steps)
    return lambda value: value.get(first) if isinstance(value, dict) else None


def getter_of(path: Path) -> RecordGetter:
    """The value at a path in a decoded record, its key or its headers."""
    if path.part == "header":
        return lambda _, record: record.header(str(path.steps[0]))
    if path.part == "key":
        return lambda _, record: _in_key(record.key, path.steps)
    get = walker(path.steps)
    return lambda root, _: get(root)


def _in_key(key: bytes | None, steps: Steps) -> Any:
    if key is None:
        return None
    if not steps:
        return key.decode("utf-8", "replace")
    try:
        return None if too_deep(key) else walked(msgspec.json.decode(key), steps)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def array_in(text: str) -> list[Any] | None:
    """The array in a text of JSON; None if the text is anything else."""
    try:
        found = None if too_deep(text.encode()) else msgspec.json.decode(text)
    except ValueError:  # of msgspec, or a lone surrogate
        return None
    return found if isinstance(found, list) else None


def is_one_of(value: Any, values: Collection[Any]) -> bool:
    """Whether a decoded value equals one of these; a boolean equals no number."""
    is_boolean = isinstance(value, bool)
    return any(value == each and isinstance(each, bool) == is_boolean for each in values)


class Scalar:
    """A member that a record has once."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._gets = [getter_of(path) for path in member.paths]
        self._convert = converter(member)
        self._plain = None if member.table or member.add else PLAIN[member.kind]
        self._is_required = member.is_required

    def __call__(self, root: Any, record: Record) -> Any:
        """The value; None if it is optional and missing. Raises LeavesOut and RecordRefused."""
        member, at, value = self.member, 0, None
        for get in self._gets:
            value = get(root, record)
            if value is not None:
                break
            at += 1
        if type(value) is self._plain:
            return value
        if not self._gets:
            return member.const
        if value is None:
            if self._is_required:
                raise RecordRefused(lambda: self._text(root, member.paths, member.kind))
            return None
        path = member.paths[at]
        if member.table is not None:
            name = table_key(value) or ""
            if name not in member.table:
                raise LeavesOut(f"{member.name}: {path.text} is {shown(value)}, not in the table")
            value = member.table[name]
        try:
            value = self._convert(value)
        except Unfit as unfit:
            needed = str(unfit)
            raise RecordRefused(lambda: self._text(root, [path], needed, value)) from None
        return value + member.add if member.add else value

    def _text(self, root: Any, paths: Sequence[Path], needed: str, value: Any = None) -> str:
        texts = [
            found(root, path.steps)
            if path.part == "value"
            else f"{path.text} is {'missing' if value is None else shown(value)}"
            for path in paths
        ]
        return f"{self.member.name}: {'; '.join(texts)}; needed: {needed}"


class Column:
    """A member that every row has: of the elements of an array, or one of parallel arrays."""

    def __init__(self, member: Member, each: Path | None) -> None:
        self.member = member
        self._each = each
        self._gets = [walker(path.steps) for path in member.paths]
        only = member.paths[0].steps if len(member.paths) == 1 else (0,)
        self._items = (
            None if any(isinstance(step, int) for step in only) else [*map(itemgetter, only)]
        )
        self._add = member.add
        self._convert = converter(member)
        self._plain = PLAIN[member.kind]

    def count(self, root: Any, rows: Sequence[Any]) -> int:
        """The number of rows. Raises RecordRefused."""
        if self._each is not None:
            return len(rows)
        array = self._array(root)
        if array is None:
            raise RecordRefused.at(self.member.name, root, self.member.paths[0].steps, "an array")
        return len(array)

    def in_table(self, root: Any, rows: Sequence[Any], n: int) -> list[int]:
        """The rows that the table of this member does not leave out."""
        table = self.member.table or {}
        raw = self._raw(root, rows, range(n))
        return [at for at, value in enumerate(raw) if value is None or table_key(value) in table]

    def values(
        self,
        root: Any,
        rows: Sequence[Any],
        picked: Sequence[int],
        need: Need,
    ) -> list[Any] | None:
        """The values of some rows; None if *need* allows that all are missing and they are.

        Raises RecordRefused.
        """
        raw, add = self._raw(root, rows, picked), self._add
        if not raw:
            return [] if need == "every" else None
        kinds = set(map(type, raw))
        if kinds == {self._plain} and self.member.table is None:
            return [value + add for value in raw] if add else raw
        if need == "all or none" and kinds <= {type(None)}:
            return None
        return [
            self._converted(root, at, value, need) for at, value in zip(picked, raw, strict=True)
        ]

    def _converted(self, root: Any, at: int, value: Any, need: str) -> Any:
        if value is None:
            if need == "any":
                return None
            raise self._refused(root, at, self.member.kind)
        if self.member.table is not None:
            value = self.member.table[table_key(value) or ""]
        try:
            return self._convert(value) + self._add if self._add else self._convert(value)
        except Unfit as unfit:
            raise self._refused(root, at, str(unfit)) from None

    def _refused(self, root: Any, at: int, needed: str) -> RecordRefused:
        def detail() -> str:
            before = () if self._each is None else (*self._each.steps, at)
            after = (at,) if self._each is None else ()
            texts = [found(root, (*before, *path.steps, *after)) for path in self.member.paths]
            return f"{self.member.name}: {'; '.join(texts)}; needed: {needed}"

        return RecordRefused(detail)

    def _raw(self, root: Any, rows: Sequence[Any], picked: Sequence[int]) -> list[Any]:
        if self._each is None:
            array = self._array(root)
            if array is None:
                return [None] * len(picked)
            return array if len(picked) == len(array) else [array[at] for at in picked]
        if len(picked) < len(rows):
            rows = [rows[at] for at in picked]
        if self._items is not None:
            values: Iterable[Any] = rows
            for get in self._items:
                values = map(get, values)
            with suppress(KeyError, TypeError):  # of a member that is missing, or in no object
                return list(values)
        if len(self._gets) == 1:
            return list(map(self._gets[0], rows))
        if not self._gets:
            return [self.member.const] * len(rows)
        return [
            next((v for get in self._gets if (v := get(row)) is not None), None) for row in rows
        ]

    def _array(self, root: Any) -> list[Any] | None:
        array = self._gets[0](root)
        if array is not None and not isinstance(array, list):
            steps = self.member.paths[0].steps
            raise RecordRefused.at(self.member.name, root, steps, "an array")
        return array

    def check_length(self, root: Any, n: int) -> None:
        """Refuses an array that is not parallel to *n* candidates."""
        array = self._array(root)
        if array is not None and len(array) != n:
            path, size = written(self.member.paths[0].steps), len(array)
            raise RecordRefused(
                lambda: f"{self.member.name}: {path} has {size} elements; needed: {n}, as the ids"
            )
