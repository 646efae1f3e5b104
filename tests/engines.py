"""Engines for tests, from settings by name."""

from copy import deepcopy
from typing import Any

from evaluator.core.engine.engine import Emits, Engine
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.settle.evaluate import ValueRules
from evaluator.core.types.records import FinalWindow


def taken(kind: Any, settings: dict[str, Any]) -> Any:
    """A struct from the settings that are its fields; these are removed."""
    return kind(**{name: settings.pop(name) for name in kind.__struct_fields__ if name in settings})


def engine_of(measures: MeasureSet, *, task: int = 0, **settings: Any) -> Engine:
    """An engine with these fields of JoinRules, ValueRules and Emits, and further arguments."""
    rules, values, emits = (taken(kind, settings) for kind in (JoinRules, ValueRules, Emits))
    return Engine(task, rules, measures, values=values, emits=emits, **settings)


def open_windows(engine: Engine) -> list[FinalWindow]:
    """Current sums of the windows that can still change."""
    return deepcopy(engine._running.windows).pop_final(1 << 200)
