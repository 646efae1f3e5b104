"""The report as a page: its numbers and plots; it is self-contained, and texts cannot break it."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from evaluator.cli import main
from evaluator.comparison import page as pages
from evaluator.comparison.drawings import Curve, curves, interval_bar, scatter
from evaluator.comparison.page import as_html
from evaluator.comparison.question import Question
from evaluator.comparison.report import Cell
from evaluator.comparison.run import GRID, cells_of, compare
from tests.comparison.rows import put, row

HOSTILE = "<script>alert(1)</script>\x1b[2J\"'&"


class Reader(HTMLParser):
    """Collects texts and tags, and checks that every tag is closed."""

    VOID = frozenset({"meta", "line", "circle", "polyline"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def values(served, bm25):
    return {
        "served": {"ndcg@10": served, "p@1": served, "r@1": served, "p@5": 0.5, "r@5": 1.0},
        "bm25": {"ndcg@10": bm25, "p@1": bm25, "r@1": bm25, "p@5": 0.25, "r@5": 0.75},
    }


@pytest.fixture
def out(tmp_path):
    rows = [row(f"t-{i:02}", values(0.5, 0.5), segments={"locale": "de"}) for i in range(40)]
    rows += [
        row(f"w-{i:02}", values(1.0, 0.25), segments={"locale": "fr"}, query=HOSTILE)
        for i in range(35)
    ]
    return put(tmp_path / "week", rows)


def html_of(*folders, names=("week",), **question):
    options = Question(resamples=100, cells=True, **question)
    groups = [[folders[0], one] for one in folders[1:]] or [list(folders)]
    return as_html([compare(group, options) for group in groups], names)


def test_the_page_shows_each_comparison_with_its_numbers_and_plots(out):
    page = Reader(html_of(out, by="locale"))
    text = " ".join(page.texts)
    difference = 35 * -0.75 / 75
    assert f"bm25 is worse: {difference:+.4f} against served" in text
    assert "0 queries won, 35 lost, 40 alike." in text
    assert "week, compared with served" in text
    for level in ("fr", "de"):
        assert f"{level} " in page.texts
    labels = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    assert labels.count("bm25 against served") == 5  # a scatter per measure
    assert labels.count("precision against recall") == 1
    assert "40 queries: 0.5 to 0.5" in page.texts
    assert "35 queries: 1 to 0.25" in page.texts
    assert "1.000 → 0.250" in page.texts


def test_the_page_has_the_means_with_their_intervals(out):
    page = Reader(html_of(out, measures=("ndcg@10",)))
    start = page.texts.index("Means with their intervals")
    table = page.texts[start:]
    served, bm25 = (40 * 0.5 + 35 * 1.0) / 75, (40 * 0.5 + 35 * 0.25) / 75
    for name, mean in (("served ndcg@10", served), ("bm25 ndcg@10", bm25)):
        at = table.index(name)
        value, low, high, queries = table[at + 1 : at + 5]
        assert (value, queries) == (f"{mean:.4f}", "75")
        assert float(low) < mean < float(high)
    assert any("There is no curve of precision and recall" in text for text in page.texts)


def test_a_single_ranker_has_means_levels_curves_and_lowest_queries(out, tmp_path, capsys):
    target = tmp_path / "r.html"
    command = ["report", str(out), "--ranker=served", "--resamples=100", "--by=locale", "--top=2"]
    assert main([*command, f"--out={target}"]) == 0
    assert capsys.readouterr().out == f"5 means of served in {target}\n"
    page = Reader(target.read_text("utf-8"))
    labels = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    assert [label for label in labels if label] == ["precision against recall"]
    assert "week, served" in page.texts
    at = page.texts.index("ndcg@10 by locale")
    levels = page.texts[at : at + 30]
    assert [levels[levels.index(name) + 1] for name in ("de", "fr")] == ["0.5000", "1.0000"]
    lowest = page.texts[page.texts.index("Lowest ndcg@10") :]
    assert lowest[lowest.index("on top") + 1 :][:4] == [
        "t-00 n, 1970-01-01T00:00:01Z",
        "0.500",
        "1",
        "a",
    ]


def test_the_page_is_self_contained_and_has_no_script(out):
    text = html_of(out)
    page = Reader(text)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"} == set()
    for _, attributes in page.tags:
        assert not {"src", "href", "onload", "onclick"} & attributes.keys()
    assert not re.search(r"url\(|@import|https?:", text)


def test_untrusted_texts_are_escaped(out):
    text = html_of(out)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_the_same_folders_give_the_same_bytes(out):
    assert html_of(out) == html_of(out)


def test_two_folders_have_a_heading_each_and_warnings_are_shown(out, tmp_path):
    other = put(tmp_path / "two", [row(f"t-{i:02}", values(0.75, 0.5)) for i in range(10)])
    names = ["two and week", "three and week"]
    text = html_of(out, other, other, names=names, rankers=("served",), measures=("ndcg@10",))
    assert "<h2>two and week, compared with served</h2>" in text
    assert "<h2>three and week, compared with served</h2>" in text
    assert "have fewer than 30 traces" in text
    texts = Reader(text).texts
    assert {f"served ndcg@10 {each.name}" for each in (out, other)} <= {*texts}


def test_comparisons_beyond_the_limit_are_in_the_table_only(out, monkeypatch):
    monkeypatch.setattr(pages, "MAX_SECTIONS", 2)
    page = Reader(html_of(out))
    assert sum("Every query" in text for text in page.texts) == 2
    assert any("3 further comparisons have no plots" in text for text in page.texts)


def test_a_query_that_does_not_differ_and_one_trace_are_shown(tmp_path):
    same = put(tmp_path / "same", [row("t", values(0.5, 0.5))])
    page = Reader(html_of(same, measures=("ndcg@10",)))
    assert "No query differs." in page.texts
    assert "-" in page.texts  # no interval of one trace


def test_cells_count_every_pair_once():
    rng = np.random.default_rng(3)
    baseline, other = rng.random(500), rng.random(500)
    cells = list(cells_of(baseline, other))
    assert sum(cell.pairs for cell in cells) == 500
    for cell in cells:
        near = np.abs(baseline - cell.baseline) <= 0.5 / GRID + 1e-12
        near &= np.abs(other - cell.other) <= 0.5 / GRID + 1e-12
        assert near.sum() == cell.pairs


def test_the_position_of_a_bar_matches_its_numbers():
    bar = interval_bar(0.1, -0.1, 0.2, extent=0.2, kind="unclear")
    assert 'x1="25.00%" x2="100.00%"' in bar
    assert 'cx="75.00%"' in bar
    mean = interval_bar(0.1, 0.05, 0.2, extent=0.2, kind="other", from_0=True)
    assert 'x1="25.00%" x2="100.00%"' in mean
    assert 'class="zero" x1="0.00%"' in mean
    assert 'cx="50.00%"' in interval_bar(0.0, 0.0, 0.0, extent=0.0, kind="same")


def test_better_queries_are_above_the_diagonal_of_a_scatter_plot():
    drawn = scatter([Cell(0.0, 1.0, 4), Cell(1.0, 0.0, 1)], "a", "b")
    better, worse = re.findall(
        r'<circle class="(\w+)" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', drawn
    )
    assert (better[0], worse[0]) == ("better", "worse")
    assert float(better[1]) < float(worse[1])  # the baseline goes to the right
    assert float(better[2]) < float(worse[2])  # up is better
    assert float(better[3]) == 2 * float(worse[3])  # four times the area


def test_values_above_one_stay_in_the_plot_area_and_in_few_cells():
    values = np.arange(10_000) / 100  # up to 99.99
    cells = list(cells_of(values, values))
    assert len(cells) == GRID + 1
    assert sum(cell.pairs for cell in cells) == len(values)
    drawn = scatter(cells, "a", "b")
    [last] = re.findall(
        r'cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+"><title>[\d,]+ queries: 100 ', drawn
    )
    end = re.search(r'class="zero" .* x2="([\d.]+)" y2="([\d.]+)"', drawn)
    assert list(map(float, last)) == list(map(float, end.groups()))  # the corner of 99.99
    assert ">75</text>" in drawn


def test_a_curve_has_a_dot_for_each_point():
    drawn = curves([Curve("<a>", "other", [(0.0, 1.0), (1.0, 0.5)])], "recall", "precision")
    assert "&lt;a&gt;: recall 1.000, precision 0.500" in drawn
    assert drawn.count("<circle") == 2


# --- the command


def test_the_command_writes_one_file(out, tmp_path, capsys):
    target = tmp_path / "deep" / "report.html"
    command = ["report", str(out), f"--out={target}", "--resamples=100", "--measure=ndcg@10"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"1 comparisons in {target}\n"
    assert Reader(target.read_text("utf-8")).tags
    assert main(command) == 2
    assert "add --force to replace it" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "--out=r.html"], 3, "is not a directory"),
        (["x"] * 21 + ["--out=r.html"], 2, "21 directories are given. Give 1 to 20"),
        (["--out=r.html"], 2, "DIR"),
        (["nowhere", "--out=r.html", "--top=-1"], 2, "--top -1 is not accepted"),
    ],
)
def test_a_report_with_invalid_arguments_is_refused(
    arguments, code, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
