"""The tables of records in Avro, by their schemas."""

from collections.abc import Mapping
from typing import Any, Final

from evaluator.mapping.avro import schema_of
from evaluator.mapping.framed_texts import WANTED, FramedTexts, Part, Tables
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import Tree, tree_of
from evaluator.mapping.schemas import Answer

_KINDS: Final = {
    name: number
    for number, name in enumerate(
        "null boolean long float double bytes string fixed enum record union array map".split()
    )
} | {"int": 2}


def texts(mapping: LogMapping, answers: Mapping[str, Answer]) -> FramedTexts:
    """The texts of framed records."""
    tree = tree_of(mapping)
    return FramedTexts(lambda number, _: _Walk(answers[str(number)], tree).tables)


class _Walk:
    """Makes the tables of a schema. Raises any error for one that cannot have them."""

    def __init__(self, answer: Answer, tree: Tree) -> None:
        schema, self._names = schema_of(answer)
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
