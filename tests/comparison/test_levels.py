"""Comparisons by level of a segment: their pairs, their order, and misleading mixes."""

import csv
import io
import json

import numpy as np
import pytest

from evaluator.cli import main
from evaluator.comparison import folder as folders
from evaluator.comparison import levels as by_level
from evaluator.comparison.formats import as_csv, as_json, as_markdown, as_table
from evaluator.comparison.levels import mix_of
from evaluator.comparison.paired import paired
from evaluator.comparison.question import Question
from evaluator.comparison.run import compare
from evaluator.ports import RequestRefused, SourceUnusable
from tests.comparison.rows import put, row


def ask(*sources, **question):
    options = {"resamples": 200, "by": "locale", **question}
    return compare(sources, Question(**options))


def in_levels(counts, values_of, *, start=0):
    """Rows of traces of their own: *counts* by level, values by level and number."""
    return [
        row(
            f"{level}-{start + i:03}",
            values_of(level, i),
            **({"segments": {"locale": level}} if level else {}),
        )
        for level, n in counts.items()
        for i in range(n)
    ]


@pytest.fixture
def levels_of(tmp_path):
    def write(counts, values_of, name="out"):
        return put(tmp_path / name, in_levels(counts, values_of))

    return write


def test_each_level_compares_only_its_own_pairs(levels_of):
    rng = np.random.default_rng(4)
    drawn = {level: rng.random((40, 2)).round(6) for level in ("de", "fr")}
    out = levels_of(
        {"de": 40, "fr": 30},
        lambda level, i: {"served": drawn[level][i, 0], "bm25": drawn[level][i, 1]},
    )
    (found,) = ask(out).comparisons
    assert {level.name for level in found.levels} == {"de", "fr"}
    traces = {"de": 40, "fr": 30}
    for level in found.levels:
        n = traces[level.name]
        one, other = drawn[level.name][:n].T
        names = np.array([f"{level.name}-{i:03}" for i in range(n)])
        alone = paired(one, other, names, resamples=200)
        assert (level.paired.pairs, level.paired.difference) == (n, alone.difference)
        assert (level.paired.wins, level.paired.losses) == (alone.wins, alone.losses)
    assert found.paired.pairs == 70


def test_the_largest_difference_is_first_and_p_is_corrected_over_the_levels(levels_of):
    gain = {"de": 0.01, "fr": -0.5, "it": 0.2}
    out = levels_of(
        {"de": 40, "fr": 40, "it": 40},
        lambda level, i: {"served": 0.5, "bm25": 0.5 + gain[level] * (i % 8 > 0)},
    )
    (found,) = ask(out).comparisons
    assert [level.name for level in found.levels] == ["fr", "it", "de"]
    for level in found.levels:  # all three reach the smallest p of 200 flips
        assert level.paired.p == 1 / 201
        assert level.p_holm == 3 / 201


def test_queries_without_a_level_are_in_the_total_only(levels_of):
    out = levels_of({"de": 40, "": 5}, lambda *_: {"served": 0.5, "bm25": 0.75})
    report = ask(out)
    (found,) = report.comparisons
    assert found.paired.pairs == 45
    assert [(level.name, level.paired.pairs) for level in found.levels] == [("de", 40)]
    assert "up to 5 pairs have no level, and are in the totals only" in report.warnings


def test_levels_with_few_pairs_are_compared_together(levels_of, monkeypatch):
    monkeypatch.setattr(by_level, "MAX_COMPARED", 2)
    out = levels_of(
        {"a": 3, "b": 30, "c": 31, "d": 4, "__other__": 2},
        lambda *_: {"served": 0.5, "bm25": 0.75},
    )
    (found,) = ask(out).comparisons
    assert {level.name: level.paired.pairs for level in found.levels} == {
        "b": 30,
        "c": 31,
        "__other__": 3 + 4 + 2,
    }


def test_a_segment_of_ids_is_refused(levels_of, monkeypatch):
    monkeypatch.setattr(folders, "MAX_LEVELS", 2)
    out = levels_of({"a": 1, "b": 1, "c": 1}, lambda *_: {"served": 0.5, "bm25": 0.75})
    with pytest.raises(
        SourceUnusable, match=r"more than 2 levels of locale: these are ids\. Choose"
    ):
        ask(out)


def test_a_segment_that_no_query_has_is_refused(levels_of):
    out = levels_of({"de": 30}, lambda *_: {"served": 0.5, "bm25": 0.75})
    with pytest.raises(
        RequestRefused, match=r"no level of the segment device\. Replay with --set seg"
    ):
        ask(out, by="device")


def test_the_level_of_the_first_of_two_sources_counts(tmp_path):
    first = [row(f"t-{i:02}", {"served": 0.5}, segments={"locale": "de"}) for i in range(40)]
    second = [
        row(f"t-{i:02}", {"served": 0.75}, segments={"locale": "fr" if i < 3 else "de"})
        for i in range(40)
    ]
    report = ask(put(tmp_path / "a", first), put(tmp_path / "b", second))
    (found,) = report.comparisons
    assert [(level.name, level.paired.pairs) for level in found.levels] == [("de", 40)]
    assert any("3 of 40 common queries have another level" in text for text in report.warnings)


def test_the_mix_effect_is_caused_by_different_shares_of_levels():
    # Both levels gain 0.1, but the second side has 3 of 4 queries in the poor level 1.
    baseline, baseline_levels = np.array([0.8, 0.8, 0.8, 0.2]), np.array([0, 0, 0, 1])
    other, other_levels = np.array([0.9, 0.3, 0.3, 0.3]), np.array([0, 1, 1, 1])
    mix = mix_of(baseline, baseline_levels, other, other_levels)
    assert mix.difference == pytest.approx(0.45 - 0.65)
    assert mix.from_mix == pytest.approx(-0.2 - 0.1)


def test_without_a_common_level_the_whole_difference_is_mix_effect():
    mix = mix_of(np.array([0.5]), np.array([0]), np.array([1.0]), np.array([1]))
    assert (mix.difference, mix.from_mix) == (0.5, 0.5)


def test_totals_that_disagree_with_levels_because_of_the_mix_are_warned_of(tmp_path):
    """Simpson's paradox: bm25 is better in both levels, and worse over all of its queries."""
    poor, rich = {"served": 0.2, "bm25": 0.3}, {"served": 0.8, "bm25": 0.9}
    rows = in_levels({"poor": 40, "rich": 40}, lambda level, _: poor if level == "poor" else rich)
    alike = ask(put(tmp_path / "alike", rows))
    assert not alike.warnings
    # Of 160 further rich queries only served has a value, of 160 poor ones only bm25.
    rows += in_levels({"rich": 160}, lambda *_: {"served": 0.8}, start=500)
    rows += in_levels({"poor": 160}, lambda *_: {"bm25": 0.3}, start=500)
    report = ask(put(tmp_path / "differs", rows))
    (found,) = report.comparisons
    assert all(level.paired.difference == pytest.approx(0.1) for level in found.levels)
    # served (40 x 0.2 + 200 x 0.8) / 240 = 0.7, bm25 (200 x 0.3 + 40 x 0.9) / 240 = 0.4
    assert found.mix.difference == pytest.approx(-0.3)
    (warning,) = report.warnings
    assert "bm25 is -0.3000 in mrr, -0.4000 of it due to other shares of levels" in warning


def test_fail_below_also_applies_to_levels(levels_of):
    values = {"de": {"served": 0.5, "bm25": 0.6}, "fr": {"served": 0.5, "bm25": 0.4}}
    out = levels_of({"de": 400, "fr": 40}, lambda level, _: values[level])
    assert not ask(out, by=None, fail_below=-0.05).failed
    (failed,) = ask(out, fail_below=-0.05).failed
    assert failed.levels_below(-0.05) == ["fr"]
    assert not ask(out, fail_below=-0.2).failed


@pytest.fixture
def report(levels_of):
    values = {"d|e": {"served": 0.5, "bm25": 0.6}, "fr": {"served": 0.5, "bm25": 0.25}}
    return ask(levels_of({"d|e": 40, "fr": 5}, lambda level, _: values[level]))


def test_tables_have_a_row_for_each_level(report):
    lines = as_table(report).splitlines()
    at = lines.index("mrr of bm25 by locale, the largest difference first:")
    assert lines[at + 1].split()[:6] == [
        "locale",
        "pairs",
        "traces",
        "served",
        "ranker",
        "difference",
    ]
    assert lines[at + 2].split()[:6] == ["fr", "5", "5", "0.5000", "0.2500", "-0.2500"]
    assert lines[at + 3].split()[:6] == ["d|e", "40", "40", "0.5000", "0.6000", "+0.1000"]
    assert "| d\\|e | 40 | 40 | 0.5000 | 0.6000 | +0.1000 |" in as_markdown(report)
    few = "1 of 2 differences of levels are of fewer than 30 traces"
    assert any(text.startswith(few) for text in report.warnings)


def test_json_and_csv_have_levels_only_on_request(report, levels_of):
    document = json.loads(as_json(report))
    (comparison,) = document["comparisons"]
    assert document["by"] == "locale"
    assert [level["level"] for level in comparison["levels"]] == ["fr", "d|e"]
    assert comparison["levels"][0]["difference"] == -0.25
    assert comparison["mix"]["difference"] == pytest.approx((40 * 0.1 - 5 * 0.25) / 45)
    assert comparison["mix"]["from_mix"] == pytest.approx(0.0, abs=1e-12)
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [one["level"] for one in rows] == ["", "fr", "d|e"]
    assert {one["ranker"] for one in rows} == {"bm25"}
    assert rows[1]["difference"] == "-0.25"
    plain = ask(levels_of({"de": 40}, lambda *_: {"served": 0.5, "bm25": 0.75}, "plain"), by=None)
    assert "level" not in as_csv(plain)
    assert not {"levels", "mix", "by"} & {*json.loads(as_json(plain)), *comparison_of(plain)}


def comparison_of(report):
    (comparison,) = json.loads(as_json(report))["comparisons"]
    return comparison


def test_the_command_compares_by_level_and_names_levels_that_fail(levels_of, capsys):
    values = {"de": {"served": 0.5, "bm25": 0.6}, "fr": {"served": 0.5, "bm25": 0.4}}
    out = levels_of({"de": 400, "fr": 40}, lambda level, _: values[level])
    command = ["compare", f"--source={out}", "--by=locale", "--resamples=200"]
    assert main(command) == 0
    assert "mrr of bm25 by locale" in capsys.readouterr().out
    assert main([*command, "--fail-below=-0.05"]) == 5
    assert "the whole interval is below -0.05 for fr" in capsys.readouterr().err
