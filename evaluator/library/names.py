"""Names of measures in trec_eval, ir_measures and ranx."""

import re
from typing import Final, NamedTuple

from evaluator.core.measures import UnknownMeasureError, is_builtin

_SAME: Final = {
    "recip_rank": "mrr",
    "RR": "mrr",
    "MRR": "mrr",
    "AP": "map",
    "MAP": "map",
    "map_cut": "map",
    "nDCG": "ndcg_linear",
    "NDCG": "ndcg_linear",
    "ndcg_cut": "ndcg_linear",
    "ndcg_burges": "ndcg",
    "ERR": "err",
    "P": "p",
    "precision": "p",
    "R": "r",
    "Recall": "r",
    "recall": "r",
    "Success": "hit",
    "success": "hit",
    "hit_rate": "hit",
    "Rprec": "rprec",
    "r-precision": "rprec",
    "Judged": "judged",
    "alpha_nDCG": "alpha_ndcg",
    "StRecall": "subtopic_recall",
}
"""The measure here with the same meaning, by the names of other programs."""

_OTHER: Final = {
    "hits": "it counts candidates; hit@k is 1 if one of them is relevant, and r@k their share",
    "dcg": "its values are not bounded by 1; ndcg_linear@k is divided by the ideal",
    "dcg_burges": "its values are not bounded by 1; ndcg@k is divided by the ideal",
    "RBP": "it multiplies by the gain; rbp[p] is for relevant or not, e.g. rbp[0.8]",
    "rbp": "it multiplies by the grade; for relevant or not there is rbp[p], e.g. rbp[0.8]",
    "set_F": "its parameter is the square of beta, of the whole list; see fbeta[b]@k",
    "SetF": "it has no order; see fbeta[b]@k",
    "SetP": "it has no order; see p@k",
    "SetR": "it has no order; see r@k",
    "set_P": "it has no order; see p@k",
    "set_recall": "it has no order; see r@k",
    "gm_map": "it is a mean of another kind; map has the values per query",
    "bpref": "there is none; judged_only=True with map takes unjudged candidates out",
    "Bpref": "there is none; judged_only=True with map takes unjudged candidates out",
    "infAP": "there is none; judged_only=True with map takes unjudged candidates out",
    "iprec_at_recall": "precision_at_recall() has it at all levels of recall",
    "IPrec": "precision_at_recall() has it at all levels of recall",
}
"""The difference, and the nearest measure here, by the names of other programs."""

_FORM: Final = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z_-]*?)(?:\((?P<arguments>[^()]*)\))?"
    r"(?:[@_.](?P<number>[0-9]+(?:\.[0-9]+)?))?(?:-l(?P<level>[0-9]+))?"
)
_CUT: Final = frozenset({"hit", "p", "r", "err", "judged", "subtopic_recall"})
_REL: Final = frozenset({"hit", "mrr", "map", "p", "r", "rprec"})


class _Foreign(NamedTuple):
    """A name of another program, in its parts."""

    spelling: str
    name: str
    arguments: dict[str, str]
    number: str | None


def own_name(spelling: str) -> str:
    """The name here of a measure of trec_eval, ir_measures or ranx; any other text unchanged.

    Raises:
        UnknownMeasureError: for a measure of theirs that has no equal here; names the nearest.

    >>> own_name("nDCG@10"), own_name("P_5"), own_name("AP(rel=2)"), own_name("ndcg@10")
    ('ndcg_linear@10', 'p@5', 'map[rel=2]', 'ndcg@10')
    """
    match = _FORM.fullmatch(spelling)
    if match is None:
        return spelling
    name = match["name"]
    is_own = is_builtin(name) and not match["arguments"] and not match["level"]
    if is_own and (match["number"] is None or "@" in spelling):
        return spelling
    arguments = _arguments(match["arguments"] or "")
    if match["level"]:
        arguments["rel"] = match["level"]
    foreign = _Foreign(spelling, name, arguments, match["number"])
    if name in _OTHER:
        raise _refused(foreign, _OTHER[name])
    if name not in _SAME and not is_builtin(name):
        return spelling
    return _translated(foreign, _SAME.get(name, name))


def _arguments(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


def _translated(foreign: _Foreign, own: str) -> str:
    arguments = dict(foreign.arguments)
    if own == "ndcg_linear" and "dcg" in arguments:
        own = {"log2": "ndcg_linear", "exp-log2": "ndcg"}.get(arguments.pop("dcg"), own)
    if arguments.pop("judged_only", "False") != "False":
        raise _refused(foreign, "give judged_only=True to the function instead")
    brackets = ""
    if own in _REL and "rel" in arguments:
        brackets = f"[rel={arguments.pop('rel')}]"
    elif own == "alpha_ndcg" and "alpha" in arguments:
        brackets = f"[{arguments.pop('alpha')}]"
    if arguments:
        raise _refused(foreign, f"{own} does not take {', '.join(sorted(arguments))}")
    if own == "ndcg" and foreign.name == "ndcg":
        raise _refused(foreign, "ndcg@k has gains 2^grade - 1; ndcg_linear@k those of the grades")
    if own in _CUT and foreign.number is None:
        raise _refused(foreign, f"{own} needs a cutoff, e.g. {own}@10")
    return f"{own}{brackets}" + (f"@{foreign.number}" if foreign.number else "")


def _refused(foreign: _Foreign, reason: str) -> UnknownMeasureError:
    return UnknownMeasureError(
        f"{foreign.spelling!r} of another program has no equal here: {reason}. docs/library.md "
        "has a table of names."
    )
