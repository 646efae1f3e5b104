"""The same report for people and for programs."""

import csv
import io
import json

import pytest

from evaluator.comparison import formats
from evaluator.comparison.formats import as_csv, as_json, as_markdown, as_table
from evaluator.comparison.question import Question
from evaluator.comparison.run import compare
from tests.comparison.rows import put, row

WRITERS = (as_table, as_markdown, as_csv, as_json)


def ask(*folders, **question):
    return compare(folders, Question(resamples=100, **question))


@pytest.fixture
def report(tmp_path):
    """Forty ties, one win and one loss of bm25, and one query of each alone."""
    rows = [row(f"t-{i:02}", {"served": 0.5, "bm25": 0.5}) for i in range(40)]
    rows += [
        row("win", {"served": 0.25, "bm25": 1.0}, query="a\x1b[2J | b\n" + 80 * "x"),
        row("loss", {"served": 1.0, "bm25": 0.5}, rank={"served": 1, "bm25": None}, top3={}),
        row("s", {"served": 1.0}),
        row("b", {"bm25": 1.0}),
    ]
    return ask(put(tmp_path / "out", rows))


def test_the_table_shows_what_is_compared_and_its_confidence(report):
    lines = as_table(report).splitlines()
    assert lines[0] == "Rankers and served: running values, 44 queries."
    assert lines[1].startswith("Difference: ranker - served on the same queries.")
    assert "100 resamples, seed 0" in lines[1]
    assert lines[3].split("  ")[0] == "ranker"
    # (0.75 - 0.5) / 42 pairs
    assert lines[4].split()[:7] == "bm25 mrr 42 42 0.5060 0.5119 +0.0060".split()
    assert lines[4].endswith("unclear")
    assert lines[6].split() == "ranker measure wins ties losses p only served only ranker".split()
    assert lines[7].split()[:5] == "bm25 mrr 1 40 1".split()
    assert lines[7].split()[-2:] == ["1", "1"]


def test_the_queries_that_changed_are_shown_with_their_ranks_and_tops(report):
    lines = as_table(report).splitlines()
    assert lines[9] == "The 2 queries that changed most in mrr, served -> bm25:"
    win, loss = lines[11:]
    assert win.split()[:4] == ["+0.7500", "0.2500", "->", "1.0000"]
    assert "1 -> 1" in win
    assert "a -> a" in win
    assert "1 -> -" in loss
    assert "- -> -" in loss
    assert "1970-01-01T00:00:01Z" in win


def test_untrusted_texts_cannot_move_the_cursor_or_fill_the_line(report):
    for write in (as_table, as_markdown):
        text = write(report)
        assert "\x1b" not in text
        assert "a\\x1b[2J" in text.replace("\\\\", "\\").replace("\\[", "[")
        assert f"{'x' * 30}…" in text
        assert "x" * 80 not in text
    assert "x" * 80 in as_json(report)


def test_markdown_has_the_same_cells_as_the_table(report):
    lines = [line for line in as_markdown(report).splitlines() if line.startswith("|")]
    assert lines[0].startswith("| ranker | measure | pairs | traces | served | ranker | difference")
    assert lines[1].startswith("| --- | --- | ---: |")
    assert lines[2].startswith("| bm25 | mrr | 42 | 42 | 0.5060 | 0.5119 | +0.0060 |")
    widths = [line.replace("\\|", "").count("|") for line in lines]
    assert widths == [11] * 3 + [9] * 3 + [9] * 4


@pytest.mark.parametrize("name", ["a|b", "`a`", "*a*", "_a_", "<a>", "[a](b)", "a\\"])
def test_names_are_escaped_in_markdown(tmp_path, name):
    rows = [row(f"t-{i}", {"served": 0.5, name: 0.75}) for i in range(3)]
    line = as_markdown(ask(put(tmp_path / "out", rows), top=0)).splitlines()[5]
    cell = line.removeprefix("| ").split(" | mrr")[0]
    assert cell != name
    assert "".join(cell.split("\\")) == name.replace("\\", "")


def test_an_underscore_within_a_name_is_not_escaped():
    assert formats._markdown_cell("ndcg_linear@10 tool_ranker") == "ndcg_linear@10 tool_ranker"


def test_json_has_a_format_version_and_full_precision(report):
    document = json.loads(as_json(report))
    assert document["format"] == 1
    assert document["sources"] == [{"rows": 44, "chain": "d" * 64}]
    (found,) = document["comparisons"]
    result = report.comparisons[0].paired
    assert found["difference"] == result.difference == 0.25 / 42
    assert (found["low"], found["high"]) == (result.interval.low, result.interval.high)
    assert found["p"] == result.p
    assert (found["pairs"], found["only_baseline"], found["only_ranker"]) == (42, 1, 1)
    assert found["fails"] is None
    win, loss = found["changes"]
    assert (win["trace_id"], win["node_id"], win["event_time_ms"]) == ("win", "n", 1_000)
    assert win["baseline"] == {"value": 0.25, "rank": 1, "top3": [["a", 1.5]]}
    assert loss["ranker"] == {"value": 0.5, "rank": None, "top3": None}


def test_csv_has_the_members_of_json(report):
    (found,) = csv.DictReader(io.StringIO(as_csv(report)))
    (document,) = json.loads(as_json(report))["comparisons"]
    del document["changes"]
    assert found == {name: "" if value is None else str(value) for name, value in document.items()}


def test_unknown_values_are_a_dash_an_empty_cell_and_null(tmp_path):
    rows = [row("t", {"served": 0.5, "bm25": 0.5}), row("u", {"dense": 0.5})]
    report = ask(put(tmp_path / "out", rows), fail_below=0.0)
    dense = as_table(report).splitlines()[5]
    assert dense.split() == "dense mrr 0 0 - - - - - unclear".split()
    last = as_csv(report).splitlines()[-1]
    assert last == "dense,mrr,0,0,,,,,,unclear,0,0,0,,1,1,true"
    document = json.loads(as_json(report))["comparisons"][1]
    assert (document["difference"], document["p"], document["fails"]) == (None, None, True)


def test_a_narrow_interval_gets_the_digits_that_it_needs(tmp_path):
    tiny = 2.0**-20  # about 0.00000095
    rows = [row(f"t-{i}", {"served": 0.5, "bm25": 0.5 + (i % 2) * tiny}) for i in range(40)]
    line = as_table(ask(put(tmp_path / "out", rows), top=0)).splitlines()[4]
    difference, low, high = (float(text) for text in line.split()[6:9])
    assert 0 < low < difference < high < tiny


def test_there_is_no_negative_zero():
    assert formats._number(-1e-9, "+.4f") == formats._number(-0.0, "+.4f") == "+0.0000"


@pytest.mark.parametrize(
    ("event_time_ms", "text"),
    [(0, "1970-01-01T00:00:00Z"), (1_763_690_000_000, "2025-11-21T01:53:20Z"), (2**63 - 1, None)],
)
def test_a_time_beyond_the_calendar_is_shown_as_a_number(event_time_ms, text):
    assert formats.utc_text(event_time_ms) == (text or str(event_time_ms))


def test_two_sources_are_distinguished_by_words_and_never_by_path(tmp_path):
    first = put(tmp_path / "before", [row(f"t-{i}", {"served": 0.5}) for i in range(3)])
    second = put(tmp_path / "after", [row(f"t-{i}", {"served": 0.75}) for i in range(4)])
    report = ask(first, second)
    text = as_table(report)
    assert text.splitlines()[0] == (
        "Rankers of the second source and served of the first: running values, 3 queries in "
        "both, of 3 and 4."
    )
    assert "served of the first -> served of the second:" in text
    assert not any(
        name in write(report) for write in WRITERS for name in ("before", "after", str(tmp_path))
    )


def test_the_queries_that_were_judged_differently_are_marked(tmp_path):
    rows = [row(f"t-{i}", {"served": 0.75}, grades={"a": 1 + i % 2}) for i in range(2)]
    first = put(tmp_path / "before", [row(f"t-{i}", {"served": 0.5}) for i in range(2)])
    report = ask(first, put(tmp_path / "after", rows))
    title, header, same, differ = as_table(report).splitlines()[-4:]
    assert (title[:13], header.split()[2]) == ("The 2 queries", "grades")
    assert (same.split()[4], differ.split()[4]) == ("same", "differ")
    changes = json.loads(as_json(report))["comparisons"][0]["changes"]
    assert [change["judged_differently"] for change in changes] == [False, True]
    alike = as_table(ask(first, put(tmp_path / "after", rows[:1])))
    assert "grades" not in alike
