"""A report as one HTML file: no script, no external resource."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from evaluator.comparison.drawings import Curve, curves, interval_bar, scatter
from evaluator.comparison.folder import ShownRow
from evaluator.comparison.formats import cut, utc_text
from evaluator.comparison.paired import Interval, Paired
from evaluator.comparison.report import Change, Comparison, Report, verdict_of
from evaluator.exposition.colours import colours
from evaluator.tables import printable
from evaluator.version import __version__

MAX_SECTIONS: Final = 40
"""Comparisons with plots and lists of their own; all are in the first table."""

_STYLE: Final = Path(__file__).with_name("report.css")
_CUTOFF: Final = re.compile(r"(?P<name>p|r)@(?P<cutoff>[0-9]+)")
_MEANINGS: Final = {
    "better": "is better",
    "worse": "is worse",
    "same": "does not differ",
    "unclear": "is not clearly better or worse",
}


def as_html(reports: Sequence[Report], names: Sequence[str]) -> str:
    """The page of comparisons; *names* has those of both sources of each report."""
    titles = [_title(report, name) for report, name in zip(reports, names, strict=True)]
    body = "".join(_body(titles, reports))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Ranking quality: {_text(titles[0])}</title>"
        f"<style>{colours()}{_STYLE.read_text('utf-8')}</style></head><body>{body}</body></html>\n"
    )


def _title(report: Report, name: str) -> str:
    if not report.comparisons:
        return f"{name}, {report.question.baseline}"
    return f"{name}, compared with {report.question.baseline}"


def _body(titles: Sequence[str], reports: Sequence[Report]) -> Iterator[str]:
    question = reports[0].question
    yield "<h1>Ranking quality</h1>"
    yield (
        f'<p class="quiet">{question.kind.capitalize()} values. A difference is ranker - '
        f"{_text(question.baseline)} on the same queries; intervals of "
        f"{question.confidence * 100:.10g} % by bootstrap over traces, p of a randomisation test "
        f"by trace, {question.resamples:,} resamples, seed {question.seed}. "
        f"Evaluator {__version__}.</p>"
    )
    n_sections = 0
    for title, report in zip(titles, reports, strict=True):
        yield f"<h2>{_text(title)}</h2>"
        yield f"<p>{report.common:,} queries{' in both' if len(report.sources) > 1 else ''}.</p>"
        if report.warnings:
            lines = "".join(f"<li>{_text(warning)}.</li>" for warning in report.warnings)
            yield f'<div class="notice"><ul>{lines}</ul></div>'
        if report.comparisons:
            yield from _overview(report)
        yield from _means(report)
        yield from _trade_off(report)
        yield from _alone(report)
        for comparison in report.comparisons:
            n_sections += 1
            if n_sections <= MAX_SECTIONS and comparison.paired is not None:
                yield from _section(comparison, comparison.paired, report)
    if n_sections > MAX_SECTIONS:
        yield (
            f'<p class="notice">{n_sections - MAX_SECTIONS} further comparisons have no plots. '
            "Choose rankers and measures with --ranker and --measure.</p>"
        )


def _overview(report: Report) -> Iterator[str]:
    pairs = [
        (f"{one.ranker} {one.measure}", one.measure, one.paired)
        for one in report.comparisons
        if one.paired is not None
    ]
    yield '<div class="card"><h3>Differences with their intervals</h3>'
    yield _intervals("ranker, measure", pairs, report)
    yield "</div>"


def _intervals(what: str, rows: Sequence[tuple[str, str, Paired]], report: Report) -> str:
    """A table with a row per name and measure: means, the difference, its interval as a bar too."""
    ends = [end for *_, one in rows for end in _ends(one)]
    extent = max(map(abs, ends), default=0.0)
    header = (
        f'<tr><th>{what}</th><th><div class="scale"><span>{-extent:+.3f}</span><span>0</span>'
        f"<span>{extent:+.3f}</span></div></th>"
        '<th class="n">difference</th><th class="n">from</th><th class="n">to</th>'
        f'<th class="n">{_text(report.question.baseline)}</th><th class="n">ranker</th>'
        '<th class="n">queries</th><th class="n">wins / ties / losses</th></tr>'
    )
    lines = [header]
    for name, measure, one in rows:
        verdict = verdict_of(one, measure)
        low, high = _ends(one)
        bar = interval_bar(one.difference, low, high, extent=extent, kind=verdict)
        limits = [f"{low:+.4f}", f"{high:+.4f}"] if one.interval else ["-", "-"]
        numbers = [f"{one.baseline_mean:.4f}", f"{one.other_mean:.4f}", f"{one.pairs:,}"]
        numbers.append(f"{one.wins:,} / {one.ties:,} / {one.losses:,}")
        lines.append(
            f'<tr><td class="text">{_text(name)} {_chip(verdict)}</td><td class="wide">{bar}</td>'
            f"{_numbers([f'{one.difference:+.4f}', *limits, *numbers])}</tr>"
        )
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _means(report: Report) -> Iterator[str]:
    rows = [
        (f"{one.ranker} {one.measure} {one.place}".rstrip(), one.paired) for one in report.means
    ]
    yield '<div class="card"><h3>Means with their intervals</h3>'
    yield f"{_mean_bars('ranker, measure', rows)}</div>"


def _alone(report: Report) -> Iterator[str]:
    """The levels and the lowest values of a ranker that is compared with no other."""
    by = _text(report.question.by or "")
    for one in report.means:
        if one.levels:
            rows = [(level.name, level.paired) for level in one.levels]
            yield f'<div class="card"><h3>{_text(one.measure)} by {by}</h3>'
            yield f"{_mean_bars(by, rows)}</div>"
        if one.lowest:
            head = "<tr><th>query</th>" + "".join(
                f'<th class="n">{name}</th>' for name in ("value", "first relevant")
            )
            lines = [
                f"<tr>{_query_cell(row)}"
                f"{_numbers([f'{value:.3f}', str(row.rank.get(one.ranker) or '-')])}"
                f'<td class="text">{_top(row, one.ranker)}</td></tr>'
                for value, row in one.lowest
            ]
            yield f'<div class="card"><h3>Lowest {_text(one.measure)}</h3><div class="scroll">'
            yield f"<table>{head}<th>on top</th></tr>{''.join(lines)}</table></div></div>"


def _mean_bars(what: str, rows: Sequence[tuple[str, Paired]]) -> str:
    """A table with a row per name: the mean and its interval as text and as a bar."""
    extent = max((end for _, one in rows for end in _ends(one)), default=0.0)
    header = (
        f'<tr><th>{what}</th><th><div class="scale"><span>0</span><span>{extent:.3f}</span></div>'
        '</th><th class="n">mean</th><th class="n">from</th><th class="n">to</th>'
        '<th class="n">queries</th></tr>'
    )
    lines = [header]
    for name, one in rows:
        low, high = _ends(one)
        bar = interval_bar(one.other_mean, low, high, extent=extent, kind="other", from_0=True)
        limits = [f"{low:.4f}", f"{high:.4f}"] if one.interval else ["-", "-"]
        lines.append(
            f'<tr><td class="text">{_text(name)}</td><td class="wide">{bar}</td>'
            f"{_numbers([f'{one.other_mean:.4f}', *limits, f'{one.pairs:,}'])}</tr>"
        )
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _ends(one: Paired) -> tuple[float, float]:
    interval = one.interval or Interval(low=one.difference, high=one.difference)
    return interval.low, interval.high


def _trade_off(report: Report) -> Iterator[str]:
    """Precision against recall over the cutoffs of `p@k` and `r@k`, with one card per ranker."""
    baseline, some = report.question.baseline, report.comparisons or report.means
    n_found = 0
    for ranker in dict.fromkeys(one.ranker for one in some):
        found: dict[int, dict[str, Paired]] = {}
        for one in some:
            match = _CUTOFF.fullmatch(one.measure)
            if one.ranker == ranker and match and one.paired is not None:
                found.setdefault(int(match["cutoff"]), {})[match["name"]] = one.paired
        both = {k: found[k] for k in sorted(found) if len(found[k]) == 2}
        if len(both) < 2:
            continue
        n_found += 1
        after = [(one["r"].other_mean, one["p"].other_mean) for one in both.values()]
        lines = [Curve(ranker, "other", after)]
        if report.comparisons:
            before = [(one["r"].baseline_mean, one["p"].baseline_mean) for one in both.values()]
            lines = [Curve(baseline, "same", before), *lines]
        key = "".join(f'<span class="{line.kind}">{_text(line.name)}</span>' for line in lines)
        yield (
            '<div class="pair"><figure class="card">'
            f"<h3>Precision and recall of {_text(ranker)}</h3>"
            f"{curves(lines, 'recall', 'precision')}"
            f'<div class="key">{key}</div></figure>'
            f'<div class="card"><h3>By cutoff</h3>{_cutoffs(list(both), lines)}</div></div>'
        )
    if not n_found:
        yield (
            '<p class="quiet">There is no curve of precision and recall: it needs p@k and r@k at '
            "two or more cutoffs, e.g. evaluator replay --set "
            "measures=ndcg@10,p@1,r@1,p@3,r@3,p@10,r@10.</p>"
        )


def _cutoffs(cutoffs: Sequence[int], lines: Sequence[Curve]) -> str:
    head = '<tr><th class="n">cutoff</th><th class="n">precision</th><th class="n">recall</th></tr>'
    rows = [
        [str(k), *(" → ".join(f"{line.points[at][xy]:.4f}" for line in lines) for xy in (1, 0))]
        for at, k in enumerate(cutoffs)
    ]
    text = "".join(f"<tr>{_numbers(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}{text}</table></div>'


def _section(comparison: Comparison, result: Paired, report: Report) -> Iterator[str]:
    baseline, ranker = report.question.baseline, comparison.ranker
    verdict = comparison.verdict
    yield f"<h2>{_text(ranker)}, {_text(comparison.measure)} {_chip(verdict)}</h2>"
    yield f"<p>{_sentence(comparison, result, baseline)}</p>"
    yield (
        '<div class="pair"><figure class="card"><h3>Every query</h3>'
        f"{scatter(comparison.cells, baseline, ranker)}"
        "<figcaption>A dot is all queries with about these values; its area is their number. Above "
        "the line the ranker is better.</figcaption></figure>"
    )
    yield f'<div class="card"><h3>What changed most</h3>{_changes(comparison, report)}</div></div>'
    if comparison.levels:
        rows = [(level.name, comparison.measure, level.paired) for level in comparison.levels]
        yield f'<div class="card"><h3>By {_text(report.question.by or "")}</h3>'
        yield _intervals(_text(report.question.by or ""), rows, report)
        yield "</div>"


def _sentence(comparison: Comparison, result: Paired, baseline: str) -> str:
    ranker = _text(comparison.ranker)
    text = (
        f"{ranker} {_MEANINGS[comparison.verdict]}: {result.difference:+.4f} against "
        f"{_text(baseline)} ({result.baseline_mean:.4f} to {result.other_mean:.4f})"
    )
    if result.interval is not None:
        text += f", interval {result.interval.low:+.4f} to {result.interval.high:+.4f}"
    if result.p is not None:
        text += f", p {result.p:.2g}"
    text += f". {result.wins:,} queries won, {result.losses:,} lost, {result.ties:,} alike."
    alone = comparison.only_baseline + comparison.only_ranker
    return f"{text} {alone:,} queries have one of both values only." if alone else text


def _changes(comparison: Comparison, report: Report) -> str:
    if not comparison.changes:
        return '<p class="quiet">No query differs.</p>'
    header = (
        '<tr><th>query</th><th class="n">difference</th><th class="n">values</th>'
        '<th class="n">first relevant</th><th>on top</th></tr>'
    )
    lines = [header]
    lines += [
        _change_row(change, report.question.baseline, comparison.ranker)
        for change in comparison.changes
    ]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _change_row(change: Change, baseline: str, ranker: str) -> str:
    one, other = change.baseline_row, change.ranker_row
    ranks = [str(row.rank.get(name) or "-") for row, name in ((one, baseline), (other, ranker))]
    tops = [_top(row, name) for row, name in ((one, baseline), (other, ranker))]
    cells = [
        f"{change.difference:+.3f}",
        f"{change.baseline_value:.3f} → {change.ranker_value:.3f}",
        f"{ranks[0]} → {ranks[1]}",
    ]
    differ = " (other grades)" if change.judged_differently else ""
    return (
        f"<tr>{_query_cell(one, differ)}{_numbers(cells)}"
        f'<td class="text">{tops[0]} → {tops[1]}</td></tr>'
    )


def _query_cell(row: ShownRow, more: str = "") -> str:
    where = f"{row.trace_id} {row.node_id}, {utc_text(row.event_time_ms)}"
    return (
        f'<td class="text">{_text(cut(row.query or ""))}{more}'
        f'<div class="quiet">{_text(where)}</div></td>'
    )


def _top(row: ShownRow, ranker: str) -> str:
    return _text(cut(row.top3[ranker][0][0])) if row.top3.get(ranker) else "-"


def _numbers(cells: Iterable[str]) -> str:
    return "".join(f'<td class="n">{cell}</td>' for cell in cells)


def _chip(verdict: str) -> str:
    return f'<span class="chip {verdict}">{verdict}</span>'


def _text(text: str) -> str:
    return escape(printable(text))
