"""What makes a comparison mean less than it seems. A sentence each, without any path."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evaluator.comparison.folder import MANIFEST, Evaluations, Manifest
from evaluator.comparison.report import Comparison

PLACES: Final = ("first source", "second source")


FEW_TRACES: Final = 30
"""With fewer, the bootstrap's interval is narrower than its confidence says."""


def doubts(
    sources: Sequence[Evaluations],
    comparisons: Sequence[Comparison],
    *,
    judged_differently: int,
    common: int,
) -> list[str]:
    """Everything to be warned of, in a fixed order."""
    return [
        *_unknown_or_changed(sources),
        *_made_differently([source.manifest for source in sources]),
        *_judged_differently(judged_differently, common),
        *_few_traces(comparisons),
    ]


def _unknown_or_changed(sources: Sequence[Evaluations]) -> Iterator[str]:
    places = PLACES if len(sources) > 1 else ("source",)
    for place, source in zip(places, sources, strict=True):
        if source.manifest is None:
            yield (
                f"the {place} has no {MANIFEST}, so it is not known whether {source.path.name} is "
                "complete, nor how it was made"
            )
        elif not source.intact:
            yield (
                f"{source.path.name} of the {place} is not as {MANIFEST} describes it: it was "
                "changed, cut or replaced after the replay"
            )


def _made_differently(manifests: Sequence[Manifest | None]) -> Iterator[str]:
    first, second = manifests[0], manifests[-1]
    if first is None or second is None:
        return
    if differing := different_settings(first.settings, second.settings):
        named = "; ".join(
            f"{name}: {_short(one)} and {_short(other)}" for name, (one, other) in differing.items()
        )
        yield (
            f"the sources were replayed with different settings ({named}), so a difference may "
            "come from those instead of the rankers"
        )
    if first.code_sha256 != second.code_sha256:
        yield (
            f"the sources were replayed by different code (versions {first.version} and "
            f"{second.version}); replay both with one if measures changed in between"
        )


def different_settings(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Both values of every setting that differs, by name; None where one has no such setting."""
    names = sorted(first.keys() | second.keys())
    pairs = {name: (first.get(name), second.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _judged_differently(n: int, common: int) -> Iterator[str]:
    if n:
        yield (
            f"{n:,} of {common:,} common queries have other grades in the second source than in "
            "the first, so their difference is one of judgments too"
        )


def _few_traces(comparisons: Sequence[Comparison]) -> Iterator[str]:
    counts = [one.paired.traces for one in comparisons if one.paired is not None]
    few = [n for n in counts if n < FEW_TRACES]
    if few:
        yield (
            f"{len(few)} of {len(comparisons)} comparisons rest on fewer than {FEW_TRACES} traces "
            f"(one on {min(few)}), where intervals are too narrow"
        )
