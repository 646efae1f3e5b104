"""Engines for tests, from settings by name."""

from dataclasses import fields
from typing import Any

from evaluator.core.engine.engine import Emits, Engine
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.settle.evaluate import ValueRules


def taken(kind: Any, settings: dict[str, Any]) -> Any:
    """A dataclass from the settings that are its fields; these are removed."""
    return kind(**{f.name: settings.pop(f.name) for f in fields(kind) if f.name in settings})


def engine_of(measures: MeasureSet, *, task: int = 0, **settings: Any) -> Engine:
    """An engine with these fields of JoinRules, ValueRules and Emits, and further arguments."""
    rules, values, emits = (taken(kind, settings) for kind in (JoinRules, ValueRules, Emits))
    return Engine(task, rules, measures, values=values, emits=emits, **settings)
