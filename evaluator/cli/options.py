"""Options of commands, and those of comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from evaluator.comparison.question import Question

FORMATS: Final = ("table", "markdown", "csv", "json")

Option: TypeAlias = tuple[str, dict[str, Any]]


def option(name: str, text: str, **arguments: Any) -> Option:
    """An option: its name, and the arguments of `add_argument`."""
    return name, {"help": text, **arguments}


def _repeatable(name: str, text: str) -> Option:
    return option(
        f"--{name}",
        f"{name} {text}; may be repeated (default: all in the files)",
        action="append",
        default=[],
        metavar="NAME",
    )


def _number(name: str, text: str, of: type[int] | type[float]) -> Option:
    default = getattr(Question(), name)
    return option(f"--{name}", f"{text} (default {default})", type=of, default=default, metavar="N")


COMPARE: Sequence[Option] = (
    option(
        "--source",
        "directory written by `replay`; of two (or --source twice) the first has the baseline, the "
        "second the rankers",
        required=True,
        action="append",
        metavar="DIR[,DIR]",
    ),
    option(
        "--baseline",
        f"ranker to compare with (default {Question().baseline})",
        default=Question().baseline,
        metavar="NAME",
    ),
    _repeatable("ranker", "to compare with the baseline"),
    _repeatable("measure", "to compare"),
    option(
        "--kind",
        "values with every judgment so far, or at maturity (default running; settled of replays "
        "with ips_dcg)",
        choices=("running", "settled"),
    ),
    option("--by", "also compare each level of this segment", metavar="SEGMENT"),
    option("--format", "of the output", choices=FORMATS, default="table"),
    option(
        "--fail-below",
        "exit 5 if the interval of any difference begins below X, e.g. -0.005",
        type=float,
        metavar="X",
    ),
    _number("top", "number of most changed queries to list", int),
    _number("confidence", "confidence of the intervals", float),
    _number("resamples", "resamples of the bootstrap and the test", int),
    _number("seed", "seed of the bootstrap and the test", int),
)
REPORT: Final = (
    option("dir", "written by `replay`; the first has the baseline", nargs="+", metavar="DIR"),
    option("--out", "the HTML file", required=True, type=Path, metavar="FILE"),
    option("--force", "replace a file that is not empty", action="store_true"),
    *(one for one in COMPARE if one[0] not in {"--source", "--format", "--fail-below"}),
)
