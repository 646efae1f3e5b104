"""`compare`: rankers against each other, from what `replay` wrote."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from evaluator.cli.wiring import FILES, KAFKA, UsageError, shown
from evaluator.comparison.formats import as_csv, as_json, as_markdown, as_table
from evaluator.comparison.paired import CONFIDENCE, RESAMPLES
from evaluator.comparison.report import Question, Report
from evaluator.comparison.run import compare as run_compare
from evaluator.config import Settings
from evaluator.core.types.records import SERVED
from evaluator.tables import printable

FOUND: Final = 5
FORMATS: Final[dict[str, Callable[[Report], str]]] = {
    "table": as_table,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
}
MAX_RESAMPLES: Final = 1_000_000
MAX_TOP: Final = 10_000


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options of `evaluator compare`."""
    parser.add_argument(
        "--source",
        required=True,
        action="append",
        metavar="DIR[,DIR]",
        help="what `replay` wrote; of two (or --source twice) the baseline is of the first and "
        "the rankers are of the second",
    )
    parser.add_argument(
        "--baseline", default=SERVED, metavar="NAME", help=f"ranker to beat (default {SERVED})"
    )
    for name, what in (("ranker", "against the baseline"), ("measure", "to compare")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{name} {what}; may be repeated (default: all in the files)",
        )
    parser.add_argument(
        "--kind",
        choices=("running", "settled"),
        default="running",
        help="values with every judgment, or as they settled (default running)",
    )
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="table", help="of what is printed"
    )
    parser.add_argument(
        "--fail-below",
        type=float,
        metavar="X",
        help="exit 5 if the interval of any difference begins below X, e.g. -0.005",
    )
    for name, default, kind, what in (
        ("top", Question().top, int, "queries to list that changed most"),
        ("confidence", CONFIDENCE, float, "of the intervals"),
        ("resamples", RESAMPLES, int, "of the bootstrap"),
        ("seed", Question().seed, int, "of the bootstrap"),
    ):
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            metavar="N",
            help=f"{what} (default {default})",
        )


def compare(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator compare`: exit 5 if a difference fails what was asked."""
    del settings
    report = run_compare(folders_of(asked.source), _question(asked))
    _write(FORMATS[asked.format](report), for_people=asked.format == "table")
    for warning in report.warnings:
        print(f"evaluator: warning: {warning}.", file=sys.stderr)
    if report.failed:
        print(f"evaluator: {failure(report)}", file=sys.stderr)
        return FOUND
    return 0


def _write(text: str, *, for_people: bool) -> None:
    """A terminal gets what it can show, a program UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if for_people:
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
    sys.stdout.flush()


def _question(asked: argparse.Namespace) -> Question:
    """Raises UsageError."""
    _check("--top", asked.top, 0 <= asked.top <= MAX_TOP, f"0 to {MAX_TOP}")
    in_range = 1 <= asked.resamples <= MAX_RESAMPLES
    _check("--resamples", asked.resamples, in_range, f"1 to {MAX_RESAMPLES}")
    _check("--confidence", asked.confidence, 0 < asked.confidence < 1, "above 0 and below 1")
    _check("--seed", asked.seed, asked.seed >= 0, "0 or more")
    limit = asked.fail_below
    _check("--fail-below", limit, limit is None or isfinite(limit), "a finite number")
    return Question(
        baseline=asked.baseline,
        rankers=tuple(dict.fromkeys(asked.ranker)),
        measures=tuple(dict.fromkeys(asked.measure)),
        kind=asked.kind,
        top=asked.top,
        resamples=asked.resamples,
        confidence=asked.confidence,
        seed=asked.seed,
        fail_below=limit,
    )


def _check(option: str, value: Any, allowed: bool, what: str) -> None:
    if not allowed:
        raise UsageError(f"{option} {value} is not accepted. Give {what}.")


def folders_of(sources: Sequence[str]) -> list[Path]:
    """One or two directories. A comma separates two, unless it is in the name of one.

    Raises UsageError.
    """
    folders: list[Path] = []
    for source in sources:
        if source.startswith(KAFKA):
            raise UsageError(
                f"--source {shown(source)}: compare reads directories. Run `evaluator replay "
                f"--source {shown(source)} --out DIR` first, then give that DIR."
            )
        whole = Path(source.removeprefix(FILES))
        parts = [str(whole)] if _exists(whole) else source.split(",")
        folders += [Path(part.removeprefix(FILES)) for part in parts]
    if len(folders) > 2 or Path() in folders:
        raise UsageError(
            f"--source {' '.join(sources)}: give one directory that `evaluator replay` wrote, or "
            "two, the one with the baseline first."
        )
    return folders


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long to be one, or a parent that may not be looked into
        return False


def failure(report: Report) -> str:
    """Which comparisons fail what was asked, and why, in one line."""
    limit, n = report.question.fail_below, len(report.comparisons)
    named = []
    for one in report.failed:
        interval = one.paired and one.paired.interval
        why = f"from {interval.low:+.6g}" if interval else "fewer than two traces, no interval"
        named.append(f"{printable(one.ranker)} {printable(one.measure)} ({why})")
    return f"{len(named)} of {n} differences may be below {limit:g}: {', '.join(named)}."
