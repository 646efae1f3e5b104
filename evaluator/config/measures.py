"""Measures of settings, including those of other installed packages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from evaluator.config.kinds import ConfigError
from evaluator.config.settings import Settings
from evaluator.core.measures import (
    MeasureKind,
    MeasureSet,
    Terms,
    UnsupportedTiesError,
    is_builtin,
    is_measure_name,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "evaluator.measures"
"""Entry points of this group are MeasureKinds by name."""


def measure_set(settings: Settings) -> MeasureSet:
    """The measures of the settings. Raises ConfigError for unknown or unsupported ones."""
    try:
        measures = parse_measures(
            settings.measures,
            Terms(
                map_graded_max_grade=settings.map_graded_max_grade,
                err_max_grade=settings.err_max_grade,
                ips_clip=settings.ips_clip,
            ),
        )
        if settings.ties == "average":
            measures.require_averages()
    except UnsupportedTiesError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        raise ConfigError(f"measures: {error}") from None
    of_seen = {measure.canonical for _, measure in measures.of_seen}
    if of_seen and settings.silence != "zero":
        raise ConfigError(
            f"measures: {', '.join(sorted(of_seen))} needs exposed candidates, and silence is "
            "unjudged. Set silence to zero, and send exposed or exposed_top in rankings."
        )
    judging = (settings.gate_measure, *dict(settings.gate_guardrails)) if settings.learns else ()
    alike = {each.canonical for _, each in measures.of_clicks if each.kind.cutoff == "never"}
    if found := (of_seen | alike) & {measures.canonical_of(name) for name in judging}:
        raise ConfigError(
            f"gate_measure or gate_guardrails names {min(found)}, which does not compare rankers. "
            "Name another measure."
        )
    weighted = {each.canonical for _, each in measures.of_clicks} - alike
    weighs = settings.learns and settings.implicit_sources and settings.label_mode == "sum"
    if weighs and measures.canonical_of(settings.gate_measure) not in weighted:
        raise ConfigError(
            "implicit_sources has clicks, which are learned from with weights (label_mode is sum), "
            f"and gate_measure {settings.gate_measure} counts all clicks alike, so it would reject "
            "the learned weights. Set gate_measure to ips_dcg@10, and add it to measures."
        )
    _refuse_above_one(settings, measures)
    return measures


def _refuse_above_one(settings: Settings, measures: MeasureSet) -> None:
    """Raises ConfigError for histograms of measures with values above 1."""
    above = {each.canonical for each in measures.measures if each.kind.above_one}
    names = settings.histogram_measures
    known = [measures.canonical_of(name) for name in names if name in measures.columns]
    if found := above.intersection(known):
        raise ConfigError(
            f"histogram_measures names {min(found)}, whose values may be above 1. "
            "Name another measure."
        )


def parse_measures(spellings: Sequence[str], scales: Terms = Terms()) -> MeasureSet:  # noqa: B008  # it is immutable
    """The measures of these names; *scales* are those of `map_graded` and `err`.

    Raises:
        ConfigError: if the package of one of them cannot be used.
        UnknownMeasureError: for an unknown name.
    """
    return MeasureSet.parse(spellings, more=installed_measures(spellings), scales=scales)


def installed_measures(requested: Iterable[str]) -> Mapping[str, MeasureKind]:
    """Measures of other packages by name; built-in names take precedence.

    Unusable ones are ignored, unless *requested* contains their names.

    Raises:
        ConfigError: names the package and its defect.
    """
    wanted = {re.split(r"[\[@]", spelling, maxsplit=1)[0] for spelling in requested}
    if all(map(is_builtin, wanted)):
        return {}
    from importlib.metadata import entry_points  # noqa: PLC0415 - reads files of all packages

    kinds: dict[str, MeasureKind] = {}
    for point in sorted(entry_points(group=GROUP), key=_of_package):
        if is_builtin(point.name):
            continue
        try:
            kind = _loaded(point)
            if point.name in kinds:
                raise ConfigError(
                    f"{_of_package(point)} and {kinds[point.name].origin} both have a measure "
                    f"{point.name}. Uninstall one of them."
                )
        except ConfigError:
            if point.name in wanted:
                raise
        else:
            kinds[point.name] = kind
    return kinds


def _loaded(point: "EntryPoint") -> MeasureKind:
    what = f"the measure {point.name} of {_of_package(point)}"
    if not is_measure_name(point.name):
        raise ConfigError(f"{what} must have a name of a-z, 0-9 and _ only. Rename it.")
    try:
        kind = point.load()
    except Exception as error:  # noqa: BLE001 - any error of an import
        raise ConfigError(f"{what} cannot be loaded: {error!r}. Correct or uninstall it.") from None
    if not isinstance(kind, MeasureKind):
        raise ConfigError(f"{what} is a {type(kind).__name__}, not a MeasureKind. Correct it.")
    return kind._replace(origin=_of_package(point), may_lack=True, companion=None)


def _of_package(point: "EntryPoint") -> str:
    return "another package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
