"""The queries that are compared, missing queries, refusals and warnings."""

import numpy as np
import pytest

from evaluator.comparison.question import Question
from evaluator.comparison.run import common_rows, compare, most_changed
from evaluator.ports import RequestRefused, SourceUnusable
from tests.comparison.rows import put, row

MANY = 40


def ask(*folders, **question):
    return compare(folders, Question(resamples=200, **question))


def one(report):
    (comparison,) = report.comparisons
    return comparison


def many(values_of, *, n=MANY):
    """Rows of traces of their own, enough of them for an interval that is not warned of."""
    return [row(f"t-{i:03}", values_of(i)) for i in range(n)]


def test_every_other_ranker_of_one_folder_is_compared_with_the_baseline(tmp_path):
    both = {"mrr": 0.5, "map": 0.25}
    rows = many(lambda _: {"served": both, "bm25": both, "dense": both})
    report = ask(put(tmp_path / "out", rows))
    compared_pairs = [(found.ranker, found.measure) for found in report.comparisons]
    assert compared_pairs == [("bm25", "mrr"), ("bm25", "map"), ("dense", "mrr"), ("dense", "map")]
    assert (report.common, report.warnings, report.failed) == (MANY, (), ())


def test_rankers_and_measures_may_be_chosen(tmp_path):
    both = {"mrr": 0.5, "map": 0.25}
    folder = put(tmp_path / "out", many(lambda _: {"served": both, "bm25": both, "dense": both}))
    report = ask(folder, baseline="dense", rankers=("served",), measures=("map",))
    assert (one(report).ranker, one(report).measure) == ("served", "map")


def test_only_queries_with_both_values_are_pairs_and_the_others_are_counted(tmp_path):
    rows = [
        row("a", {"served": 0.5, "bm25": 1.0}),
        row("b", {"served": 0.25, "bm25": 0.25}),
        row("c", {"served": 1.0}),
        row("d", {"served": 1.0, "bm25": {"map": 1.0}}),  # a value, but of another measure
        row("e", {"served": {"map": 1.0}, "bm25": 0.0}),
        row("f", {}),
    ]
    found = one(ask(put(tmp_path / "out", rows), measures=("mrr",)))
    assert (found.paired.pairs, found.only_baseline, found.only_ranker) == (2, 2, 1)
    assert found.paired.baseline_mean == (0.5 + 0.25) / 2
    assert found.paired.other_mean == (1.0 + 0.25) / 2
    assert (found.paired.wins, found.paired.ties, found.paired.losses) == (1, 1, 0)


def test_two_folders_are_joined_by_the_complete_key(tmp_path):
    first = [
        row("c", {"served": 1.0}),
        row("a", {"served": 0.0}),
        row("b", {"served": 0.5}, node_id="m"),
        row("b", {"served": 1.0}, event_time_ms=7),
    ]
    second = [
        row("b", {"served": 0.25}, event_time_ms=7),
        row("b", {"served": 1.0}, node_id="m"),
        row("b", {"served": 1.0}, event_time_ms=8),
        row("d", {"served": 0.0}),
        row("a", {"served": 0.5}),
    ]
    report = ask(put(tmp_path / "before", first), put(tmp_path / "after", second))
    found = one(report)
    assert (found.ranker, report.common) == ("served", 3)
    assert (found.paired.pairs, found.only_baseline, found.only_ranker) == (3, 1, 2)
    assert found.paired.traces == 2
    assert found.paired.baseline_mean == (0.0 + 0.5 + 1.0) / 3
    assert found.paired.other_mean == (0.5 + 1.0 + 0.25) / 3
    changed = [(change.baseline_row.trace_id, change.difference) for change in found.changes]
    assert changed == [("b", -0.75), ("a", 0.5), ("b", 0.5)]
    assert all(
        (change.baseline_row.trace_id, change.baseline_row.node_id)
        == (change.ranker_row.trace_id, change.ranker_row.node_id)
        for change in found.changes
    )


def test_the_baseline_is_of_the_first_folder_and_the_rankers_of_the_second(tmp_path):
    first = put(tmp_path / "a", many(lambda _: {"served": 0.25, "old": 1.0}))
    second = put(tmp_path / "b", many(lambda _: {"served": 0.5, "new": 0.75}))
    report = ask(first, second)
    differences = {found.ranker: found.paired.difference for found in report.comparisons}
    assert differences == {"served": 0.25, "new": 0.5}
    with pytest.raises(
        RequestRefused, match=r"b/evaluations\.ndjson has no ranker old.* served, new"
    ):
        ask(first, second, rankers=("old",))
    with pytest.raises(
        RequestRefused, match=r"a/evaluations\.ndjson has no ranker new.* served, old"
    ):
        ask(first, second, baseline="new")


def test_joined_rows_are_in_the_order_of_the_first_folder():
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 50, (300, 2)).astype(np.uint64)
    keys = np.unique(keys, axis=0)
    first, second = rng.permutation(keys)[:150], rng.permutation(keys)[:150]
    rows, others = common_rows(first, second)
    where = {tuple(key): at for at, key in enumerate(second.tolist())}
    expected = [
        (at, where[tuple(key)]) for at, key in enumerate(first.tolist()) if tuple(key) in where
    ]
    assert list(zip(rows.tolist(), others.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("differences", "top", "expected"),
    [
        ([0.5, -1.0, 0.0, 0.75], 2, [1, 3]),
        ([0.25, 0.5, -0.5] * 500, 3, [1, 2, 4]),  # of equal ones the earlier
        ([0.0, 0.25, 0.0], 10, [1]),  # unchanged members are not listed
        ([0.5, 1.0], 0, []),
        ([], 3, []),
    ],
)
def test_the_queries_that_changed_most(differences, top, expected):
    assert most_changed(np.array(differences), top).tolist() == expected


def test_additional_comparisons_do_not_change_any_number(tmp_path):
    rng = np.random.default_rng(2)
    values = rng.random((MANY, 3)).tolist()
    rows = many(lambda i: dict(zip(("served", "bm25", "dense"), values[i], strict=True)))
    folder = put(tmp_path / "out", rows)
    alone = one(ask(folder, rankers=("dense",)))
    assert alone == ask(folder).comparisons[1]


def test_the_order_of_the_rows_changes_no_number(tmp_path):
    rng = np.random.default_rng(2)
    values = rng.random((MANY, 2)).tolist()
    rows = many(lambda i: dict(zip(("served", "bm25"), values[i], strict=True)))
    forwards = one(ask(put(tmp_path / "a", rows)))
    backwards = one(ask(put(tmp_path / "b", rows[::-1])))
    assert forwards.paired == backwards.paired


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"baseline": "nobody"}, "no ranker nobody. It has: served, bm25"),
        ({"rankers": ("nobody",)}, "no ranker nobody. It has: served, bm25"),
        ({"measures": ("mrr", "ndgc")}, "no measure ndgc. It has: mrr"),
        ({"rankers": ("served",)}, "served is the baseline"),
    ],
)
def test_a_name_that_the_files_lack_is_refused_with_those_that_they_have(tmp_path, question, words):
    folder = put(tmp_path / "out", many(lambda _: {"served": 0.5, "bm25": 0.5}))
    with pytest.raises(RequestRefused, match=words):
        ask(folder, **question)


def test_a_measure_must_be_in_both_folders(tmp_path):
    first = put(tmp_path / "a", many(lambda _: {"served": {"mrr": 0.5, "map": 0.5}}))
    second = put(tmp_path / "b", many(lambda _: {"served": {"top1": 0.5, "map": 0.5}}))
    assert one(ask(first, second)).measure == "map"
    with pytest.raises(RequestRefused, match=r"b/evaluations\.ndjson has no measure mrr"):
        ask(first, second, measures=("mrr",))
    third = put(tmp_path / "c", many(lambda _: {"served": {"top1": 0.5}}))
    with pytest.raises(SourceUnusable, match=r"no measure in common: .* mrr, map, .* top1"):
        ask(first, third)


def test_folders_without_a_common_query_are_refused(tmp_path):
    first = put(tmp_path / "a", many(lambda _: {"served": 0.5}))
    second = put(tmp_path / "b", [row("x", {"served": 0.5})])
    with pytest.raises(SourceUnusable, match=r"no query in common: no row of 40 and of 1 has"):
        ask(first, second)


def test_rankers_without_common_queries_are_refused(tmp_path):
    rows = [row("a", {"served": 0.5}), row("b", {"bm25": 0.5}), row("c", {"bm25": 0.5})]
    words = r"bm25 mrr: 1 queries with served only, 2 with bm25 only"
    with pytest.raises(SourceUnusable, match=words):
        ask(put(tmp_path / "out", rows))


def test_a_ranker_without_common_queries_is_shown_with_one_that_has_some(tmp_path):
    rows = [*many(lambda _: {"served": 0.5, "bm25": 0.5}), row("z", {"dense": 0.5})]
    dense = ask(put(tmp_path / "out", rows), fail_below=-1.0).comparisons[1]
    assert (dense.ranker, dense.paired, dense.verdict) == ("dense", None, "unclear")
    assert (dense.only_baseline, dense.only_ranker) == (MANY, 1)


def test_the_error_for_a_folder_with_only_the_baseline_has_the_remedy(tmp_path):
    with pytest.raises(SourceUnusable, match=r"only the ranker served.*second --source"):
        ask(put(tmp_path / "out", many(lambda _: {"served": 0.5})))


@pytest.mark.parametrize("rows", [[], [row("a", {})]])
def test_a_folder_without_a_value_is_refused(tmp_path, rows):
    with pytest.raises(SourceUnusable, match="no query with a value"):
        ask(put(tmp_path / "out", rows))


def test_the_verdict_follows_the_interval(tmp_path):
    rng = np.random.default_rng(4)
    noise = (rng.random(MANY) / 4).tolist()

    def values(i):
        up, down, even = 0.5 + noise[i], 0.5 - noise[i], 0.5 + noise[i] - noise[i - 1]
        return {"served": 0.5, "up": up, "down": down, "even": even, "same": 0.5}

    report = ask(put(tmp_path / "out", many(values)))
    verdicts = {found.ranker: found.verdict for found in report.comparisons}
    assert verdicts == {"up": "better", "down": "worse", "even": "unclear", "same": "same"}


@pytest.mark.parametrize("measure", ["unjudged@3", "abandoned"])
def test_fewer_is_better_where_the_measure_counts_what_is_bad(tmp_path, measure):
    rows = [row(f"t{n}", {"served": {measure: 0.0}, "worse": {measure: 1.0}}) for n in range(30)]
    (found,) = compare([put(tmp_path / "a", rows)], Question(baseline="served")).comparisons
    assert (found.paired.difference, found.verdict) == (1.0, "worse")


def test_an_interval_below_the_limit_or_without_bounds_fails(tmp_path):
    noise = (np.random.default_rng(4).random(MANY) / 4).tolist()
    rows = many(lambda i: {"served": 0.5, "up": 0.5 + noise[i], "down": 0.5 - noise[i]})
    rows.append(row("z", {"served": 0.5, "alone": 0.9}))
    folder = put(tmp_path / "out", rows)

    def failed(limit):
        return [found.ranker for found in ask(folder, fail_below=limit).failed]

    assert failed(-1.0) == ["alone"]  # one trace has no interval
    assert failed(0.0) == ["down", "alone"]
    assert failed(0.5) == ["up", "down", "alone"]


def test_an_interval_that_touches_the_limit_passes(tmp_path):
    folder = put(tmp_path / "out", many(lambda _: {"served": 0.5, "bm25": 0.75}))
    assert ask(folder, fail_below=0.25).failed == ()
    assert len(ask(folder, fail_below=0.2500001).failed) == 1


# Warnings


def two(tmp_path, *, second=None, **manifest):
    first = put(tmp_path / "a", many(lambda _: {"served": 0.5}))
    rows = second or many(lambda _: {"served": 0.75})
    return first, put(tmp_path / "b", rows, **manifest)


def test_equal_folders_cause_no_warning(tmp_path):
    assert ask(*two(tmp_path)).warnings == ()


def test_settings_that_differ_are_named_with_both_values(tmp_path):
    settings = {"retention_ms": 2, "measures": ["mrr", "map"]}
    (warning,) = ask(*two(tmp_path, settings=settings)).warnings
    assert "measures: None and mrr,map; retention_ms: 1 and 2" in warning


def test_other_code_is_warned_of(tmp_path):
    (warning,) = ask(*two(tmp_path, code_sha256="e" * 64, version="0.2.0")).warnings
    assert "different code (versions 0.1.0 and 0.2.0)" in warning


def test_queries_judged_differently_are_counted_and_warned_of(tmp_path):
    second = many(lambda _: {"served": 0.75})
    second[3] = row("t-003", {"served": 0.75}, grades={"a": 2})
    second[4] = row("t-004", {"served": 0.75}, grades={"a": 1, "b": 0})
    report = ask(*two(tmp_path, second=second))
    assert report.judged_differently == 2
    changes = {
        change.baseline_row.trace_id: change.judged_differently for change in one(report).changes
    }
    assert changes == {f"t-{i:03}": i in {3, 4} for i in range(10)}
    assert report.warnings[0].startswith("2 of 40 common queries have other grades")


def test_a_missing_manifest_and_a_changed_file_are_warned_of(tmp_path):
    first, second = two(tmp_path)
    (first / "manifest.json").unlink()
    path = second / "evaluations.ndjson"
    path.write_bytes(path.read_bytes() + row("z", {}) + b"\n")
    report = ask(first, second)
    assert "the first source has no manifest.json" in report.warnings[0]
    assert "evaluations.ndjson of the second source does not match manifest" in report.warnings[1]
    assert [source.chain for source in report.sources] == [None, "d" * 64]


@pytest.mark.parametrize(("n", "warned"), [(29, True), (30, False)])
def test_few_traces_are_warned_of(tmp_path, n, warned):
    rows = many(lambda _: {"served": 0.5, "bm25": 0.75}, n=n)
    warnings = ask(put(tmp_path / "out", rows)).warnings
    assert bool(warnings) == warned
    assert not warned or "1 of 1 comparisons have fewer than 30 traces (one has 29)" in warnings[0]
