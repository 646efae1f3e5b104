"""Functions of other programs that score rankings, by `NAME=MODULE:FUNCTION`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from evaluator.cli.exits import UsageError
from evaluator.replay.weighing import Score
from evaluator.wire.messages.limits import MAX_SCORERS, is_scorer_name

_FORM: Final = "NAME=MODULE:FUNCTION, e.g. lgbm=models:score"


def scorers_of(given: Sequence[str]) -> dict[str, tuple[str, Score]]:
    """The functions of `--scorer` with their places, by the names of their rankers.

    Modules are imported from the current directory first, as by `python -m`. Raises UsageError.
    """
    if len(given) > MAX_SCORERS:
        raise UsageError(f"{len(given)} times --scorer; give it up to {MAX_SCORERS} times.")
    found: dict[str, tuple[str, Score]] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or not all(place.partition(":")):
            raise UsageError(f"--scorer {text!r} is not {_FORM}.")
        if not is_scorer_name(name) or name in found:
            raise UsageError(
                f"--scorer {text!r}: the name must be a new one, and not served, champion, "
                "challenger or weights."
            )
        found[name] = (place, _function(place))
    return found


def _function(place: str) -> Score:
    """Raises UsageError."""
    module, _, path = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:  # noqa: BLE001 - any error of an import
        raise UsageError(f"--scorer {place}: {type(error).__name__}: {error}.") from None
    if not callable(found):
        raise UsageError(
            f"--scorer {place} is of type {type(found).__name__}; it must be a function from "
            "features to scores."
        )
    return found
