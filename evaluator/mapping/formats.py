"""The formats of records that name a schema, and the packages that decode them."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from evaluator.mapping.document import MappingRefused
from evaluator.mapping.schemas import Answer

_PACKAGES: Final = {"avro": "fastavro"}


def compiler_of(form: str) -> Callable[[Answer], Callable[[bytes], Any]]:
    """What makes a decoder of a schema. Raises MappingRefused if its package is not installed."""
    if find_spec(_PACKAGES[form]) is None:
        raise MappingRefused(
            f"format = {form} needs the package {_PACKAGES[form]}, which is not installed. "
            f"Install evaluator[{form}]."
        )
    compiler: Callable[[Answer], Callable[[bytes], Any]]
    compiler = import_module(f"evaluator.mapping.{form}").compiled
    return compiler
