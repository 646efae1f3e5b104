"""The measures by name, and the terms that each name takes (docs/measures.md)."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from evaluator.core.measures import binary, diversity, exposure, graded
from evaluator.core.measures.exact_sums import to_units
from evaluator.core.measures.exposure import Clicks, Seen
from evaluator.core.measures.lists import WHOLE_LIST, JudgedLists, Terms
from evaluator.core.measures.tables import MAX_GRADE
from evaluator.core.types.records import FloatArray, IntArray

MAX_MEASURES: Final = 256
MAX_CUTOFF: Final = 999_999

MeasureFunction = Callable[[JudgedLists, Terms], FloatArray]
"""From judged lists and the terms of the name to one value in [0, 1] per list."""

Occurrence = Literal["always", "never", "optional"]


class InvalidInputError(ValueError):
    """Data or an argument cannot be used; the message has the remedy."""


class UnknownMeasureError(InvalidInputError):
    """The name is not a measure; the message lists the measures."""


class UnsupportedTiesError(InvalidInputError):
    """Some of the measures cannot be averaged over tied candidates; the message names them."""


class MeasureFailedError(Exception):
    """The measure of another package raised an error or returned an invalid value."""


class Parameter(NamedTuple):
    """A number in brackets: its letter in the list of names, its bounds, and its default."""

    letter: str
    smallest: Decimal
    largest: Decimal
    usual: Decimal | None = None


class MeasureKind(NamedTuple):
    """A measure without its cutoff and parameter.

    `cutoff`: whether `@k` follows the name. `averages_ties`: it gives the mean over the orders of
    tied candidates if its lists have ties. `may_lack`: it gives NaN for a query without a value.
    `companion`: a measure that is always shown with it. `origin`: name and version of its package,
    if it is not built in. `subtopics`: it uses subtopics. `binary`: its name may have the least
    relevant grade, `rel=N`, in the brackets. `of_seen`: it gives the settled value of the served
    order, None for none; its function gives no value. `of_clicks`: likewise, of every ranker.
    `above_one`: its values may be above 1.
    """

    function: MeasureFunction
    cutoff: Occurrence
    parameter: Parameter | None = None
    averages_ties: bool = False
    may_lack: bool = False
    companion: str | None = None
    origin: str = ""
    subtopics: bool = False
    binary: bool = False
    of_seen: Callable[[Seen, Terms], float | None] | None = None
    of_clicks: Callable[[Clicks, Terms], float | None] | None = None
    above_one: bool = False

    def takes(self, parameter: str | None, cutoff: str | None, least: str | None = None) -> bool:
        """Whether a name may have this parameter, cutoff and least relevant grade, or none."""
        if least is not None and not (self.binary and 0 < Decimal(least) <= MAX_GRADE):
            return False
        accepted = self.parameter
        may_miss = accepted is None or accepted.usual is not None
        with_parameter = may_miss if parameter is None else accepted is not None
        return with_parameter and self.cutoff != ("always" if cutoff is None else "never")

    def spellings(self, name: str) -> list[str]:
        """The forms of its name, with k for the cutoff and a letter for the parameter."""
        stems = [name]
        if self.parameter is not None:
            bracketed = f"{name}[{self.parameter.letter}]"
            stems = [bracketed] if self.parameter.usual is None else [name, bracketed]
        endings = {"always": ["@k"], "never": [""], "optional": ["", "@k"]}[self.cutoff]
        return [stem + ending for stem in stems for ending in endings]


_ALPHA = Parameter("a", Decimal(0), Decimal(1), usual=Decimal("0.5"))
_BETA = Parameter("b", Decimal(0), Decimal(1000))
_PERSISTENCE = Parameter("p", Decimal(0), Decimal("0.999999999"))

_averaged = partial(MeasureKind, averages_ties=True)
_binary = partial(MeasureKind, averages_ties=True, binary=True)
_of_seen = partial(MeasureKind, exposure.unknown, averages_ties=True, may_lack=True)
_of_clicks = partial(MeasureKind, exposure.unknown, may_lack=True)
_of_subtopics = partial(MeasureKind, may_lack=True, subtopics=True)

REGISTRY: Final[Mapping[str, MeasureKind]] = {
    "hit": _binary(binary.hit, "always"),
    "mrr": _binary(binary.reciprocal_rank, "optional"),
    "ndcg": _averaged(graded.ndcg, "optional"),
    "ndcg_linear": _averaged(graded.ndcg_linear, "optional"),
    "map": _binary(binary.average_precision, "optional"),
    "map_min": _averaged(binary.average_precision_of_reachable, "always"),
    "map_graded": _averaged(graded.map_graded, "always", companion="map_graded_ceiling"),
    "map_graded_ceiling": _averaged(graded.map_graded_ceiling, "always"),
    "p": _binary(binary.precision, "always"),
    "r": _binary(binary.recall, "always"),
    "rprec": _binary(binary.r_precision, "never"),
    "f1": _binary(binary.f1, "always"),
    "fbeta": _binary(binary.f_beta, "always", _BETA),
    "alpha_ndcg": _of_subtopics(diversity.alpha_ndcg, "always", _ALPHA),
    "subtopic_recall": _of_subtopics(diversity.subtopic_recall, "always", averages_ties=True),
    "err": MeasureKind(graded.expected_reciprocal_rank, "always"),
    "rbp": _averaged(binary.rank_biased_precision, "never", _PERSISTENCE),
    "judged": _averaged(binary.judged_share, "always"),
    "unjudged": _averaged(binary.unjudged_share, "always"),
    "ctr": _of_seen("always", of_seen=exposure.click_through),
    "abandoned": _of_seen("never", of_seen=exposure.abandoned),
    "ips_dcg": _of_clicks("always", of_clicks=exposure.ips_dcg, above_one=True),
    "ips_clicks": _of_clicks(
        "never", of_clicks=exposure.ips_clicks, above_one=True, companion="ips_clipped"
    ),
    "ips_clipped": _of_clicks("never", of_clicks=exposure.ips_clipped),
}
ALIASES: Final = {"top1": "hit@1", "top3": "hit@3"}
"""Other names of hit at a cutoff, and the canonical ones of these two."""

_NUMBER: Final = r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,9})?"
_NAME: Final = re.compile(
    r"(?P<name>[a-z_0-9]+?)"
    rf"(?:\[(?:(?P<parameter>{_NUMBER})(?:(?=\])|,(?=rel=)))?(?:rel=(?P<least>{_NUMBER}))?(?<!\[)\])?"
    r"(?:@(?P<cutoff>[1-9][0-9]{0,5}))?"
)

Kinds = Mapping[str, MeasureKind]
NO_KINDS: Final[Kinds] = {}
_USUAL_TERMS: Final = Terms()


class Measure(NamedTuple):
    """One measure to compute. `canonical` names it in sums and on Prometheus."""

    canonical: str
    kind: MeasureKind
    terms: Terms

    def __call__(self, lists: JudgedLists) -> FloatArray:
        """Values in [0, 1], or NaN where a query lacks it: `[n_lists]`.

        Raises:
            MeasureFailedError: if the measure of another package fails.
        """
        if self.terms.least_relevant:
            lists = lists.relevant_from(self.terms.least_relevant)
        if not self.kind.origin:
            return self.kind.function(lists, self.terms)
        what = f"the measure {self.canonical} of {self.kind.origin}"
        try:
            values = np.asarray(self.kind.function(lists, self.terms), np.float64)
        except Exception as error:
            raise MeasureFailedError(
                f"{what} failed: {error!r}. Remove it from measures, or correct it."
            ) from error
        if values.shape != lists.query_of.shape or ((values < 0) | (values > 1)).any():
            raise MeasureFailedError(
                f"{what} must give one value in [0, 1] per list, NaN for none. "
                "Remove it from measures, or correct it."
            )
        return values


def lower_is_better(measure: str) -> bool:
    """Whether low values of a measure are good, as of `unjudged@3`."""
    return measure.partition("@")[0] in {"unjudged", "abandoned"}


def split_names(text: str) -> list[str]:
    """The names in a text with commas; a comma in brackets or parentheses is part of a name.

    >>> split_names("map,fbeta[2,rel=3]@5")
    ['map', 'fbeta[2,rel=3]@5']
    """
    return [name.strip() for name in re.split(r",(?![^\[(]*[\])])", text)]


def known_measures(more: Kinds = NO_KINDS) -> list[str]:
    """The forms of all names, with k for a cutoff; *more* are measures of other packages."""
    kinds = {**REGISTRY, **more}
    return [*ALIASES, *(one for name, kind in kinds.items() for one in kind.spellings(name))]


def parse_measure(
    spelling: str, *, more: Kinds = NO_KINDS, usual_terms: Terms = _USUAL_TERMS
) -> Measure:
    """The measure of a name such as `ndcg@10`.

    Raises:
        UnknownMeasureError: for an unknown name; lists the measures.

    >>> parse_measure("hit@1").canonical
    'top1'
    >>> parse_measure("alpha_ndcg[0.50]@5").canonical
    'alpha_ndcg@5'
    """
    match = _NAME.fullmatch(ALIASES.get(spelling, spelling))
    kind = {**more, **REGISTRY}.get(match["name"]) if match else None
    takes = match and kind and kind.takes(match["parameter"], match["cutoff"], match["least"])
    if match is None or kind is None or not takes:
        raise UnknownMeasureError(
            f"{spelling!r} is not a measure. Measures: {', '.join(known_measures(more))} "
            f"(k stands for a whole number from 1 to {MAX_CUTOFF}, a letter in brackets for a "
            "number, e.g. ndcg@10, rbp[0.8]; the least relevant grade may follow "
            f"{', '.join(name for name, one in REGISTRY.items() if one.binary)}, e.g. "
            "p[rel=2]@10)."
        )
    name, cutoff, value, accepted = match["name"], match["cutoff"], Decimal(0), kind.parameter
    if accepted is not None:
        value = Decimal(match["parameter"] or accepted.usual or 0).normalize()
        if not accepted.smallest <= value <= accepted.largest:
            raise UnknownMeasureError(
                f"{spelling!r} is not a measure: it takes {accepted.letter} from "
                f"{accepted.smallest:f} to {accepted.largest:f}."
            )
    least = Decimal(match["least"] or 0).normalize()
    brackets = [f"{value:f}"] if accepted is not None and value != accepted.usual else []
    brackets += [f"rel={least:f}"] if least else []
    name += f"[{','.join(brackets)}]" if brackets else ""
    name += f"@{cutoff}" if cutoff else ""
    canonical = next((alias for alias, meant in ALIASES.items() if meant == name), name)
    terms = usual_terms._replace(cutoff=int(cutoff) if cutoff else WHOLE_LIST, parameter=value)
    terms = terms._replace(least_relevant=float(least))
    return Measure(canonical, kind, terms)


def is_builtin(name: str) -> bool:
    """Whether the name belongs to a built-in measure."""
    return name in REGISTRY or name in ALIASES


def is_measure_name(name: str) -> bool:
    """Whether the name is valid for a measure."""
    return re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is not None


class MeasureSet(Struct, frozen=True):
    """Measures and their companions, each computed once, whatever its spellings.

    `spellings` are the configured names and the names of companions, in the order of output.
    """

    spellings: tuple[str, ...]
    measures: tuple[Measure, ...]
    columns: Mapping[str, int]  # by spelling
    scales: Terms

    @classmethod
    def parse(
        cls,
        spellings: Sequence[str],
        *,
        more: Kinds = NO_KINDS,
        scales: Terms = _USUAL_TERMS,
    ) -> "MeasureSet":
        """The set of these names; a repeated name counts once.

        *more* are measures of other packages by name; *scales* are those of `map_graded` and `err`.

        Raises:
            UnknownMeasureError: for an unknown name, no name at all, or too many.
        """
        asked = tuple(dict.fromkeys(spellings))
        if not 1 <= len(asked) <= MAX_MEASURES:
            raise UnknownMeasureError(
                f"{len(asked)} measures are configured; configure 1 to {MAX_MEASURES}, "
                "e.g. top1,top3,mrr,ndcg@10,map@10."
            )
        by_spelling: dict[str, Measure] = {}
        for spelling in asked:
            by_spelling[spelling] = parse_measure(spelling, more=more, usual_terms=scales)
            if companion := by_spelling[spelling].kind.companion:
                name = f"{companion}{''.join(spelling.partition('@')[1:])}"
                by_spelling[name] = parse_measure(name, usual_terms=scales)
        parsed = {measure.canonical: measure for measure in by_spelling.values()}
        numbers = {canonical: column for column, canonical in enumerate(parsed)}
        columns = {name: numbers[measure.canonical] for name, measure in by_spelling.items()}
        return cls(tuple(by_spelling), tuple(parsed.values()), columns, scales)

    @property
    def canonical(self) -> tuple[str, ...]:
        """One name per column of values, in order."""
        return tuple(measure.canonical for measure in self.measures)

    @property
    def may_lack(self) -> bool:
        """Whether a query may lack some of the values."""
        return any(measure.kind.may_lack for measure in self.measures)

    @property
    def needs_subtopics(self) -> bool:
        """Whether some of the measures use subtopics; those of other packages may."""
        return any(measure.kind.subtopics or measure.kind.origin for measure in self.measures)

    @property
    def of_seen(self) -> list[tuple[int, Measure]]:
        """The measures of exposed candidates, with their columns."""
        return [each for each in enumerate(self.measures) if each[1].kind.of_seen is not None]

    @property
    def of_clicks(self) -> list[tuple[int, Measure]]:
        """The measures of weighted clicks, with their columns."""
        return [each for each in enumerate(self.measures) if each[1].kind.of_clicks is not None]

    @property
    def origins(self) -> dict[str, str]:
        """The package of each measure of another package, by canonical name."""
        kinds = {measure.canonical: measure.kind for measure in self.measures}
        return {canonical: kind.origin for canonical, kind in kinds.items() if kind.origin}

    def columns_of(self, spellings: Sequence[str]) -> list[int]:
        """The columns of values of these spellings, each once; without any, all."""
        return list(dict.fromkeys(map(self.columns.__getitem__, spellings or self.spellings)))

    def canonical_of(self, spelling: str) -> str:
        """The canonical name of a spelling of the set."""
        return self.canonical[self.columns[spelling]]

    def require_averages(self) -> None:
        """Raises UnsupportedTiesError if a measure cannot be averaged over tied candidates."""
        without = [measure.canonical for measure in self.measures if not measure.kind.averages_ties]
        if without:
            raise UnsupportedTiesError(
                f"ties = average is not defined for {', '.join(without)}. Set ties to id, or "
                "remove these from measures."
            )

    def values(self, lists: JudgedLists) -> FloatArray:
        """`[n_lists, n_measures]`, each in [0, 1], or NaN where a query lacks it.

        Raises:
            MeasureFailedError: if the measure of another package fails.
        """
        values = np.empty((len(self.measures), len(lists.query_of))).T
        by_cutoff: dict[int, JudgedLists] = {}
        for column, measure in enumerate(self.measures):
            cutoff = WHOLE_LIST if measure.kind.origin else measure.terms.cutoff
            if cutoff not in by_cutoff:
                by_cutoff[cutoff] = lists.within(cutoff)
            values[:, column] = measure(by_cutoff[cutoff])
        return values

    def units(self, lists: JudgedLists) -> IntArray:
        """The values in units of 2^-40, MISSING for NaN: `[n_lists, n_measures]`."""
        return to_units(self.values(lists))
