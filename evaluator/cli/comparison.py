"""`compare`: compares rankers on the files of `replay`."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from evaluator.adapters.files import NewFile
from evaluator.cli.exits import FOUND, UsageError
from evaluator.cli.wiring import FILES, KAFKA, shown, warn
from evaluator.comparison.folder import read_manifest
from evaluator.comparison.formats import as_csv, as_json, as_markdown, as_table
from evaluator.comparison.page import as_html
from evaluator.comparison.question import Question
from evaluator.comparison.report import Report
from evaluator.comparison.run import compare as run_compare
from evaluator.config import Settings
from evaluator.tables import printable

FORMATS: Final[dict[str, Callable[[Report], str]]] = {
    "table": as_table,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
}
MAX_RESAMPLES: Final = 1_000_000
MAX_TOP: Final = 10_000
MAX_FOLDERS: Final = 20


def compare(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator compare`: exit 5 if an interval begins below --fail-below."""
    del settings
    folders = folders_of(options.source)
    report = run_compare(folders, _question(options, folders[0]))
    _write(FORMATS[options.format](report), for_people=options.format == "table")
    for warning in report.warnings:
        warn(f"{warning}.")
    if report.failed:
        print(f"evaluator: {failure(report)}", file=sys.stderr)
        return FOUND
    return 0


def report(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator report`: one directory, or each further one compared with the first."""
    del settings
    folders = [Path(folder.removeprefix(FILES)) for folder in options.dir]
    if len(folders) > MAX_FOLDERS:
        raise UsageError(f"{len(folders)} directories are given. Give 1 to {MAX_FOLDERS}.")
    question = replace(_question(options, folders[0]), cells=True)
    out = NewFile(options.out, force=options.force)
    groups = [[folders[0], other] for other in folders[1:]] or [folders]
    reports = [run_compare(group, question) for group in groups]
    out.write(as_html(reports, [_named(group) for group in groups]).encode("utf-8", "replace"))
    for warning in dict.fromkeys(warning for one in reports for warning in one.warnings):
        warn(f"{warning}.")
    n = sum(len(one.comparisons) for one in reports)
    what = f"{n:,} comparisons" if n else f"{len(reports[0].means):,} means of {question.baseline}"
    print(f"{what} in {options.out}")
    return 0


def _named(folders: Sequence[Path]) -> str:
    """The names of the directories that are compared, without their parents."""
    names = [folder.resolve().name for folder in folders]
    return names[0] if len(names) == 1 else f"{names[1]} and {names[0]}"


def _write(text: str, *, for_people: bool) -> None:
    """Writes text for people in the encoding of the terminal, other text in UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if for_people:
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
    sys.stdout.flush()


def _question(options: argparse.Namespace, first: Path) -> Question:
    """The options; weighted clicks are settled values. Raises UsageError and SourceUnusable."""
    limit = getattr(options, "fail_below", None)
    for name, allowed, accepted in (
        ("top", 0 <= options.top <= MAX_TOP, f"0 to {MAX_TOP}"),
        ("resamples", 1 <= options.resamples <= MAX_RESAMPLES, f"1 to {MAX_RESAMPLES}"),
        ("confidence", 0 < options.confidence < 1, "above 0 and below 1"),
        ("seed", options.seed >= 0, "0 or more"),
        ("fail_below", limit is None or isfinite(limit), "a finite number"),
    ):
        if not allowed:
            option = f"--{name.replace('_', '-')} {getattr(options, name)}"
            raise UsageError(f"{option} is not accepted. Give {accepted}.")
    manifest = None if options.kind else read_manifest(first)
    weighted = any(name.startswith("ips_") for name in options.measure)
    weighted = weighted or (manifest is not None and bool(manifest.weighted))
    given = {**vars(options), "kind": options.kind or ("settled" if weighted else "running")}
    return Question(
        rankers=tuple(dict.fromkeys(options.ranker)),
        measures=tuple(dict.fromkeys(options.measure)),
        **{name: given[name] for name in Question.__struct_fields__ if name in given},
    )


def folders_of(sources: Sequence[str]) -> list[Path]:
    """One or two directories; a comma separates two, unless the whole names an existing one."""
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
    except OSError:  # a name that is too long, or an unreadable parent
        return False


def failure(report: Report) -> str:
    """The comparisons below --fail-below, in one line."""
    limit, n = report.question.fail_below, len(report.comparisons)
    named = []
    for one in report.failed:
        interval = one.paired and one.paired.interval
        why = f"from {interval.low:+.6g}" if interval else "fewer than two traces, no interval"
        if levels := one.levels_below(limit or 0.0):
            named_levels = ", ".join(map(printable, levels[:3]))
            why += f"; the whole interval is below {limit:g} for {named_levels}"
        named.append(f"{printable(one.ranker)} {printable(one.measure)} ({why})")
    return f"{len(named)} of {n} differences may be below {limit:g}: {', '.join(named)}."
