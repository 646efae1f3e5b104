"""Avro: a schema to a decoder of records, and to the tables that the compiled part reads them with.

Schemas are not trusted, so the cost of each is bounded.

A record has at most MAX_RECORD_BYTES, and each of its values takes at least one byte: types that
take none are accepted as branches of unions only. Recursive types are refused, because the library
decodes them by recursion in C. Times, dates and UUIDs stay the numbers and texts that they are
written as; decimals are exact.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any, Final

import msgspec

from evaluator.mapping.fitting import Type, misfit
from evaluator.mapping.framed_texts import WANTED, FramedTexts, Part, Tables
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import Tree, tree_of
from evaluator.mapping.paths import Step
from evaluator.mapping.schemas import Answer, SchemaUnusable
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.reading import MAX_NESTING, too_deep
from evaluator.wire.records import MAX_RECORD_BYTES

MAX_SCALE: Final = 100
"""Most digits after the point of a decimal."""
MAX_DECIMAL_BYTES: Final = 128
"""Most bytes of a decimal that is a number; a longer one stays bytes."""
_DECIMAL: Final = "exact-decimal"
_KEPT: Final = ("name", "namespace", "symbols", "size", "precision", "scale")
_INNER: Final = ("type", "items", "values")
_KINDS: Final = {
    name: number
    for number, name in enumerate(
        "null boolean long float double bytes string fixed enum record union array map".split()
    )
} | {"int": 2}
_Known = dict[tuple[str, tuple[Step, ...]], set[Type]]


def compiled(answer: Answer, mapping: LogMapping) -> Callable[[bytes], Any]:
    """The decoder of a schema, for any mapping. Raises SchemaUnusable."""
    del mapping
    from fastavro import schemaless_reader  # noqa: PLC0415 - of an extra
    from fastavro.read import LOGICAL_READERS  # noqa: PLC0415 - of an extra

    LOGICAL_READERS.update(dict.fromkeys((f"bytes-{_DECIMAL}", f"fixed-{_DECIMAL}"), _decimal))
    parsed, _ = _schema_of(answer)

    def decode(payload: bytes) -> Any:
        stream = BytesIO(payload)
        try:
            found = schemaless_reader(stream, parsed, None)
        except EOFError:
            return Malformed("decode", "the record ends too early")
        except Exception:  # noqa: BLE001  # any error of the library is that of the record
            return Malformed("decode", "the bytes are not a record of it")
        if n_left := len(payload) - stream.tell():
            return Malformed("decode", f"{n_left} bytes follow the record")
        return found

    return decode


def _decimal(data: bytes, schema: Any, _: Any) -> Decimal | bytes:
    """The number of a decimal: the library's rounds to its precision, and takes any size."""
    if len(data) > MAX_DECIMAL_BYTES:
        return data
    return Decimal(f"{int.from_bytes(data, 'big', signed=True)}e-{schema.get('scale', 0)}")


def _schema_of(answer: Answer) -> tuple[Any, dict[str, Any]]:
    """The parsed schema, and its types by their names. Raises SchemaUnusable."""
    from fastavro import parse_schema  # noqa: PLC0415 - of an extra

    if answer.kind != "AVRO":
        raise SchemaUnusable(f"is of type {answer.kind}, not AVRO")
    names: dict[str, Any] = {}
    parsed: Any = None
    try:
        for _, text in (*answer.references, ("", answer.schema)):
            if too_deep(text.encode()):
                raise SchemaUnusable(f"nested more than {MAX_NESTING} deep")
            parsed = parse_schema(_cleaned(msgspec.json.decode(text)), names)
    except SchemaUnusable:
        raise
    except Exception as error:  # any error of the library is that of the schema
        raise SchemaUnusable("is not a schema of Avro") from error
    _Bounds(names).require(parsed)
    return parsed, names


def texts(mapping: LogMapping, answers: Mapping[str, Answer]) -> FramedTexts:
    """The texts of framed records."""
    tree = tree_of(mapping)
    return FramedTexts(lambda number, _: _Walk(answers[str(number)], tree).tables)


def unfit(answer: Answer, mapping: LogMapping) -> str | None:
    """The first member that no record of a schema can give. Raises SchemaUnusable."""
    schema, names = _schema_of(answer)
    known: _Known = {}

    def types_at(steps: Sequence[Step]) -> set[Type]:
        return _types_at(schema, names, tuple(steps), known)

    def in_binary_mode(steps: Sequence[Step]) -> set[Type]:  # all but `data` are headers
        return types_at(steps[1:]) if steps[0] == "data" else {("string", False)}

    why = misfit(mapping, types_at)
    if mapping.envelope != "cloudevents" or why is None or types_at(("data",)):
        return why
    return misfit(mapping, in_binary_mode)


def _types_at(
    schema: Any, names: Mapping[str, Any], steps: tuple[Step, ...], known: _Known
) -> set[Type]:
    """The types other than null that a path can find; *known* are those of named types."""
    if isinstance(schema, list):
        return set().union(*(_types_at(each, names, steps, known) for each in schema))
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _types_at(kind, names, steps, known)
    if kind in names:
        if (kind, steps) not in known:
            known[kind, steps] = _types_at(names[kind], names, steps, known)
        return known[kind, steps]
    if isinstance(schema, dict) and kind in {"array", "map"}:
        inner = schema["items" if kind == "array" else "values"]
        if steps:
            is_inside = isinstance(steps[0], int) == (kind == "array")
            return _types_at(inner, names, steps[1:], known) if is_inside else set()
        return (
            {(each, True) for each, _ in _types_at(inner, names, (), known)}
            if kind == "array"
            else {(kind, False)}
        )
    if steps and isinstance(schema, dict) and kind == "record":
        below = (each["type"] for each in schema["fields"] if each["name"] == steps[0])
        return set().union(*(_types_at(each, names, steps[1:], known) for each in below))
    if steps or kind == "null":
        return set()
    if isinstance(schema, dict):
        is_decimal = schema.get("logicalType") == _DECIMAL
        kind = "decimal" if is_decimal else schema["name"] if kind == "record" else kind
    return {(kind, False)}


def _cleaned(schema: Any) -> Any:
    """A schema with the members that decoding needs; decimals are the only logical types left."""
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: schema[name] for name in _KEPT if name in schema}
    if not isinstance(kept.get("name", ""), str):
        raise SchemaUnusable("has a name that is not a text")
    if "size" in kept and (
        type(kept["size"]) is not int or not 0 <= kept["size"] <= MAX_RECORD_BYTES
    ):
        raise SchemaUnusable(f"a fixed has a size that is not from 0 to {MAX_RECORD_BYTES}")
    kept |= {name: _cleaned(schema[name]) for name in _INNER if name in schema}
    if isinstance(schema.get("fields"), list):
        kept["fields"] = [_cleaned(each) for each in schema["fields"]]
    if schema.get("logicalType") == "decimal" and schema.get("type") in {"bytes", "fixed"}:
        scale, precision = schema.get("scale", 0), schema.get("precision")
        is_valid = type(scale) is type(precision) is int and 0 <= scale <= precision > 0
        if is_valid and scale > MAX_SCALE:
            raise SchemaUnusable(f"a decimal has a scale beyond {MAX_SCALE}")
        if is_valid:  # otherwise its bytes count, by the specification
            kept["logicalType"] = _DECIMAL
    return kept


class _Bounds:
    """Refuses schemas whose records could cost too much to decode."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._heights: dict[str, int] = {}
        self._open: set[str] = set()

    def require(self, schema: Any) -> None:
        """Raises SchemaUnusable."""
        self._height(schema, 0, may_be_empty=True)

    def _height(self, schema: Any, depth: int, *, may_be_empty: bool = False) -> int:
        """How deep values nest below this one."""
        if depth > MAX_NESTING:
            raise SchemaUnusable(f"nested more than {MAX_NESTING} deep")
        if isinstance(schema, list):
            inner = [self._height(each, depth + 1, may_be_empty=True) for each in schema]
            return 1 + max(inner, default=0)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and isinstance(kind, dict | list):
            return self._height(kind, depth + 1, may_be_empty=may_be_empty)
        if kind in self._names or (isinstance(schema, dict) and "name" in schema):
            return self._of_named(schema, kind, depth, may_be_empty)
        if kind == "null" and not may_be_empty:
            raise SchemaUnusable("has a null outside of a union")
        if isinstance(schema, dict) and kind in {"array", "map"}:
            return 1 + self._height(schema["items" if kind == "array" else "values"], depth + 1)
        return 0

    def _of_named(self, schema: Any, kind: str, depth: int, may_be_empty: bool) -> int:
        name = schema["name"] if isinstance(schema, dict) and "name" in schema else kind
        schema = self._names.get(name, schema)
        if name in self._open:
            raise SchemaUnusable(f"{name} is recursive, which is not supported")
        takes_none = not schema.get("fields", True) or schema.get("size") == 0
        if takes_none and not may_be_empty:
            raise SchemaUnusable(f"{name} takes no bytes outside of a union")
        if name not in self._heights:
            self._open.add(name)
            inner = [self._height(each["type"], depth + 1) for each in schema.get("fields", ())]
            self._open.discard(name)
            self._heights[name] = 1 + max(inner, default=0)
        if depth + self._heights[name] > MAX_NESTING:
            raise SchemaUnusable(f"nested more than {MAX_NESTING} deep")
        return self._heights[name]


class _Walk:
    """Makes the tables of a schema. Raises any error for one that cannot have them."""

    def __init__(self, answer: Answer, tree: Tree) -> None:
        schema, self._names = _schema_of(answer)
        self._known: dict[tuple[str, int], int] = {}
        self.tables = Tables()
        self.tables.root = self._type(schema, tree)

    def _type(self, schema: Any, tree: Tree | None) -> int:
        """The number of a type, of whose members those in *tree* are written."""
        if isinstance(schema, list):
            return self._add("union", [("", self._type(each, tree), True) for each in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and isinstance(kind, dict | list):
            return self._type(kind, tree)
        if kind in self._names or (isinstance(schema, dict) and "name" in schema):
            name = schema["name"] if isinstance(schema, dict) and "name" in schema else kind
            key = name, id(tree)
            if key not in self._known:
                self._known[key] = self._named(self._names.get(name, schema), tree)
            return self._known[key]
        if kind == "array":
            return self._add(kind, [("", self._type(schema["items"], tree), True)])
        if kind == "map":
            others = ("", self._type(schema["values"], None), False)
            named = [
                (key, self._type(schema["values"], below), True)
                for key, below in (tree or {}).items()
            ]
            return self._add(kind, [others, *named])
        return self._add(kind, [])

    def _named(self, schema: Any, tree: Tree | None) -> int:
        kind = schema["type"]
        if kind == "fixed":
            return self.tables.add(_KINDS[kind], [], schema["size"])
        if kind == "enum":
            return self._add(kind, [(symbol, 0, True) for symbol in schema["symbols"]])
        fields = [(each["name"], each["type"]) for each in schema["fields"]]
        tree = tree or {}
        return self._add(
            kind, [(name, self._type(of, tree.get(name)), name in tree) for name, of in fields]
        )

    def _add(self, kind: str, parts: list[tuple[str, int, bool]]) -> int:
        return self.tables.add(
            _KINDS[kind], [Part(name, of, use * WANTED) for name, of, use in parts]
        )
