"""The tables of records in Protobuf, by the messages that they name."""

from collections.abc import Mapping

from evaluator.mapping.framed_texts import FramedTexts, Tables
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import tree_of
from evaluator.mapping.protobuf import types_in_answer, types_in_set
from evaluator.mapping.protobuf_types import Types
from evaluator.mapping.schemas import Answer


class ProtobufTexts(FramedTexts):
    """The texts of records, framed or, with a descriptor set, not."""

    has_indexes = True

    def __init__(self, mapping: LogMapping, answers: Mapping[str, Answer]) -> None:
        super().__init__()
        self._tree, self._answers = tree_of(mapping), answers
        self._schemas: dict[int, tuple[Types, dict[tuple[int, ...], str]]] = {}
        self._own: tuple[int, ...] | None = None
        """The indexes of the only message, with a descriptor set."""
        if mapping.descriptors is not None:
            types, indexes_of = types_in_set(mapping)
            name = f".{mapping.message}"
            self._own = indexes_of[name]
            _, self.unframed = types.decoder(name, self._tree, is_strict=True)

    def tables(self, number: int, indexes: tuple[int, ...]) -> Tables | None:
        if self._own is not None:
            return self.unframed if indexes == self._own else None
        if number not in self._schemas:
            types, indexes_of = types_in_answer(self._answers[str(number)])
            self._schemas[number] = types, {at: name for name, at in indexes_of.items()}
        types, names = self._schemas[number]
        return types.decoder(names[indexes], self._tree, is_strict=False)[1]
