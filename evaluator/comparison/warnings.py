"""Warnings about the sources and the evidence of a comparison; each is a sentence without paths."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evaluator.comparison.folder import MANIFEST, Evaluations, Manifest
from evaluator.comparison.report import Comparison

PLACES: Final = ("first source", "second source")
FEW_TRACES: Final = 30
"""With fewer traces the interval of the bootstrap is too narrow for its confidence."""
ROUNDING: Final = 1e-9


def warnings_of(
    sources: Sequence[Evaluations],
    comparisons: Sequence[Comparison],
    *,
    judged_differently: int,
    common: int,
    levels_differ: int = 0,
) -> list[str]:
    """All warnings, in a fixed order."""
    return [
        *_manifests_missing_or_wrong(sources),
        *_replays_differ([source.manifest for source in sources]),
        *_judged_differently(judged_differently, common),
        *_unweighted(sources, comparisons),
        *_few_traces(comparisons),
        *_levels(comparisons, levels_differ, common),
        *_other_mix(comparisons),
    ]


def _manifests_missing_or_wrong(sources: Sequence[Evaluations]) -> Iterator[str]:
    places = PLACES if len(sources) > 1 else ("source",)
    for place, source in zip(places, sources, strict=True):
        if source.manifest is None:
            yield (
                f"the {place} has no {MANIFEST}, so it is unknown whether {source.path.name} is "
                "complete, and with which settings it was made"
            )
        elif not source.intact:
            yield (
                f"{source.path.name} of the {place} does not match {MANIFEST}: it was changed, cut "
                "or replaced after the replay"
            )


def _replays_differ(manifests: Sequence[Manifest | None]) -> Iterator[str]:
    first, second = manifests[0], manifests[-1]
    if first is None or second is None:
        return
    if differing := different_settings(first.settings, second.settings):
        named = "; ".join(
            f"{name}: {_short(one)} and {_short(other)}" for name, (one, other) in differing.items()
        )
        yield (
            f"the sources were replayed with different settings ({named}), which may be the cause "
            "of differences"
        )
    if first.code_sha256 != second.code_sha256:
        yield (
            f"the sources were replayed by different code (versions {first.version} and "
            f"{second.version}); replay both with one version if measures changed in between"
        )


def different_settings(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Both values of every setting that differs, by name; None for a missing setting."""
    names = sorted(first.keys() | second.keys())
    pairs = {name: (first.get(name), second.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _judged_differently(n: int, common: int) -> Iterator[str]:
    if n:
        yield (
            f"{n:,} of {common:,} common queries have other grades in the second source than in "
            "the first, so their values also differ by judgments"
        )


def _unweighted(sources: Sequence[Evaluations], comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Of measures that count all clicks alike, compared together with weighted clicks."""
    weighted = dict.fromkeys(
        name for each in sources if each.manifest for name in each.manifest.weighted
    )
    others = dict.fromkeys(one.measure for one in comparisons if one.measure[:4] != "ips_")
    if weighted and others:
        yield (
            f"clicks have weights in settled {', '.join(weighted)} only; if judgments are clicks, "
            f"{', '.join(others)} prefer the order that was served"
        )


def _few_traces(comparisons: Sequence[Comparison]) -> Iterator[str]:
    counts = [one.paired.traces for one in comparisons if one.paired is not None]
    few = [n for n in counts if n < FEW_TRACES]
    if few:
        yield (
            f"{len(few)} of {len(comparisons)} comparisons have fewer than {FEW_TRACES} traces "
            f"(one has {min(few)}), so their intervals are too narrow"
        )


def _levels(comparisons: Sequence[Comparison], levels_differ: int, common: int) -> Iterator[str]:
    if levels_differ:
        yield (
            f"{levels_differ:,} of {common:,} common queries have another level in the second "
            "source; that of the first counts"
        )
    found = [level for one in comparisons for level in one.levels]
    few = [level for level in found if level.paired.traces < FEW_TRACES]
    if few:
        yield (
            f"{len(few)} of {len(found)} differences of levels are of fewer than {FEW_TRACES} "
            "traces, so their intervals are too narrow"
        )
    without = max((_without_level(one) for one in comparisons), default=0)
    if without:
        yield f"up to {without:,} pairs have no level, and are in the totals only"


def _without_level(one: Comparison) -> int:
    of_levels = sum(level.paired.pairs for level in one.levels)
    return one.paired.pairs - of_levels if one.paired and one.mix else 0


def _other_mix(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Of comparisons where the mix moves the totals by more than half the width of the interval."""
    for one in comparisons:
        interval = one.paired.interval if one.paired else None
        if one.mix is None or interval is None:
            continue
        if abs(one.mix.from_mix) > max(ROUNDING, (interval.high - interval.low) / 2):
            yield (
                f"the mix of levels differs: over all queries of each side {one.ranker} is "
                f"{one.mix.difference:+.4f} in {one.measure}, {one.mix.from_mix:+.4f} of it due to "
                "other shares of levels, so totals and levels disagree; trust the levels"
            )
