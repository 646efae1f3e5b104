"""The formats of records that have a schema, and the packages that decode them."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from evaluator.mapping.document import MappingRefused
from evaluator.mapping.framed_texts import FramedTexts
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.record import Record
from evaluator.mapping.schemas import Answer, FramedDecoder, SchemaUnusable
from evaluator.version import how_to_install

_PACKAGES: Final = {"avro": ("fastavro",), "protobuf": ("google", "google.protobuf")}
"""The package of a format, after its parent packages."""


def reader_of(mapping: LogMapping, answers: Mapping[str, Answer]) -> Callable[[Record], Any] | None:
    """The decoder of records with a schema: to plain objects or Malformed; None if they have none.

    Raises MappingRefused, also if the package of the format is not installed.
    """
    form = mapping.format
    if form not in _PACKAGES:
        return None
    if not all(map(find_spec, _PACKAGES[form])):
        raise MappingRefused(
            f"format = {form} needs the package {_PACKAGES[form][0]}, which is not installed. "
            f"{how_to_install(form)}"
        )
    module = _module_of(form)
    if mapping.descriptors is None:
        compiled = partial(module.compiled, mapping=mapping)
        compares = partial(unfit, mapping=mapping)
        return FramedDecoder(answers, compiled, compares, has_indexes=form == "protobuf")
    try:
        reader: Callable[[Record], Any] = module.reader(mapping)
    except SchemaUnusable as unusable:
        raise MappingRefused(f"[{mapping.log}]: {unusable}.") from None
    return reader


def texts_of(mapping: LogMapping, answers: Mapping[str, Answer]) -> FramedTexts | None:
    """The texts of records with a schema, for a plan; None if they have none."""
    form = mapping.format
    if form not in _PACKAGES:
        return None
    texts: FramedTexts = _module_of(form).texts(mapping, answers)
    return texts


def unfit(answer: Answer, mapping: LogMapping) -> str | None:
    """The reason why no record of a schema can give a message, if known. Raises SchemaUnusable."""
    why: str | None = _module_of(mapping.format).unfit(answer, mapping)
    return why


def _module_of(form: str) -> Any:
    return import_module(f"evaluator.mapping.{form}")
