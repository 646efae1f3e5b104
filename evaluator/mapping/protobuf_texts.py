"""The tables of records in Protobuf, by the messages that they name."""

from collections.abc import Mapping
from functools import cache

from evaluator.mapping.framed_texts import FramedTexts, Tables
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import tree_of
from evaluator.mapping.protobuf import types_in_answer, types_in_set
from evaluator.mapping.schemas import Answer


def texts(mapping: LogMapping, answers: Mapping[str, Answer]) -> FramedTexts:
    """The texts of records, framed or, with a descriptor set, not."""
    tree = tree_of(mapping)
    if mapping.descriptors is not None:
        types, indexes_of = types_in_set(mapping)
        name = f".{mapping.message}"
        own, (_, unframed) = indexes_of[name], types.decoder(name, tree, is_strict=True)
        return FramedTexts(
            lambda _, indexes: unframed if indexes == own else None,
            unframed=unframed,
            has_indexes=True,
        )

    schema_of = cache(lambda number: types_in_answer(answers[str(number)]))

    def tables(number: int, indexes: tuple[int, ...]) -> Tables | None:
        types, names = schema_of(number)
        return types.decoder(names[indexes], tree, is_strict=False)[1]

    return FramedTexts(tables, has_indexes=True)
