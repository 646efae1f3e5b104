"""Qrels and runs as mappings, frames and TREC files, and the errors of unreadable ones."""

import gzip
import importlib

import numpy as np
import pytest

import evaluator

QRELS = {"q1": {"a": 2, "b": 0, "gone": 1}, "q2": {"c": 1}, "q3": {"a": 1}}
RUN = {"q1": {"a": 0.25, "b": 0.75, "new": 0.5}, "q2": {"c": 1.5, "d": 2.5}, "q4": {"a": 1.0}}
SKIP = {"missing": "skip"}  # q3
MEASURES = ["mrr", "ndcg@10", "r@5"]
EXPECTED = evaluator.evaluate(QRELS, RUN, MEASURES, **SKIP)
FRAMES = ["polars", pytest.param("pandas", marks=pytest.mark.slow)]  # it takes long to import


def rows(by_query):
    return [(q, name, number) for q, of in by_query.items() for name, number in of.items()]


def frame(library, by_query, names):
    columns = zip(*rows(by_query), strict=True)
    return importlib.import_module(library).DataFrame(
        {name: list(column) for name, column in zip(names, columns, strict=True)}
    )


def same(found):
    assert found.per_query == EXPECTED.per_query
    assert found.mean == EXPECTED.mean


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize(
    ("of_qrels", "of_run"),
    [
        (("query_id", "candidate_id", "grade"), ("query_id", "candidate_id", "score")),
        (("q_id", "doc_id", "score"), ("q_id", "doc_id", "score")),
        (("query_id", "doc_id", "relevance"), ("query_id", "doc_id", "score")),
        (("qid", "docno", "label"), ("qid", "docno", "score")),
    ],
)
def test_frames_are_read_by_the_names_of_their_columns(library, of_qrels, of_run):
    frames = frame(library, QRELS, of_qrels), frame(library, RUN, of_run)
    same(evaluator.evaluate(*frames, MEASURES, **SKIP))


@pytest.mark.parametrize("library", FRAMES)
def test_the_forms_may_be_mixed_and_whole_numbers_name_queries(library):
    qrels = importlib.import_module(library).DataFrame(
        {"qid": [7, 7], "docid": [1, 2], "rel": [0, 1]}
    )
    found = evaluator.evaluate(qrels, {"7": {"1": 1.0, "2": 0.5}}, "mrr")
    assert found.per_query == {"7": {"mrr": 0.5}}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_without_a_column_is_refused_by_name(library):
    columns = {"query_id": ["q1"], "text": ["a"], "grade": [1]}
    short = importlib.import_module(library).DataFrame(columns)
    with pytest.raises(ValueError, match="qrels has the columns query_id, text, grade, and none"):
        evaluator.evaluate(short, RUN, "mrr")


def trec_files(folder, ending=""):
    opened = gzip.open if ending else open
    qrels, run = folder / f"qrels.txt{ending}", folder / f"run.txt{ending}"
    with opened(qrels, "wt") as file:
        file.writelines(f"{q} 0 {name}\t{grade}\n" for q, name, grade in rows(QRELS))
    with opened(run, "wt") as file:
        file.writelines(f"{q} Q0 {name} 1 {score} tag\n\n" for q, name, score in rows(RUN))
    return qrels, run


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_trec_files_are_read_by_their_paths(tmp_path, ending, kind):
    qrels, run = trec_files(tmp_path, ending)
    same(evaluator.evaluate(kind(qrels), kind(run), MEASURES, **SKIP))


def test_of_a_repeated_candidate_the_best_score_and_the_last_grade_count(tmp_path):
    (tmp_path / "qrels").write_text("q 0 a 1\nq 0 b 2\nq 0 b 0\n")
    (tmp_path / "run").write_text("q Q0 a 1 0.5 t\nq Q0 b 2 0.9 t\nq Q0 a 3 1.0 t\nq Q0 a 4 0 t\n")
    found = evaluator.evaluate(tmp_path / "qrels", tmp_path / "run", "mrr,r@1")
    assert found.per_query == {"q": {"mrr": 1.0, "r@1": 1.0}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin", b"q1 0 \xe9 1\n"),
        ("whole.gz", b"q1 0 a 1\n"),
        ("cut.gz", gzip.compress(b"q", mtime=0)[:-9]),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_of_the_library(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(evaluator.InvalidInputError, match=f"{name} cannot be read"):
        evaluator.evaluate(tmp_path / name, RUN, "mrr")


@pytest.mark.parametrize("line", ["q1 0 a", "q1 0 a one", "q1 Q0 a 1 0.5 tag"])
def test_an_invalid_line_is_named(tmp_path, line):
    (tmp_path / "qrels").write_text(f"q1 0 a 1\n{line}\n")
    with pytest.raises(ValueError, match="line 2 is not a line of a TREC qrels file"):
        evaluator.evaluate(tmp_path / "qrels", RUN, "mrr")


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (7, RUN, "qrels is of type int; give a mapping"),
        (QRELS, 7, "run is of type int; give a mapping"),
        (QRELS, np.ones((1, 2)), "either both qrels and run must be arrays, or none"),
        (np.ones((1, 2)), np.ones((1, 3)), "must both be"),
        (np.ones(3), np.ones(3), "must both be"),
        ([[1.0]], [[1.0, 2.0]], "must both be"),
        ([[1.0]], [[1.0], [2.0]], "qrels have 1 lists and the run 2"),
        ([["x"]], [[1.0]], "qrels must be"),
        ([[10**400]], [[1.0]], "qrels must be"),
        (np.array([["x"]]), np.ones((1, 1)), "it must be of numbers"),
        ([1.0], [1.0], "run must be"),
        (np.ones((2, 1)), np.array([[1.0], [np.inf]]), "query 1 has a score or a grade"),
        (np.array([[1.0], [31.5]]), np.ones((2, 1)), "query 1 has a score or a grade"),
        ({"q": {"a": 32}}, {"q": {"a": 1.0}}, "'q' has a score or a grade"),
        ({"q": {"a": 1}}, {"q": {"a": float("nan")}}, "'q' to 'q' is not a number"),
        ({"q": {"a": 1}}, {"q": {"a": None}}, "'q' to 'q' is not a number"),
        ({"q": {"a": 1}}, {"q": {"a": "high"}}, "'q' to 'q' is not a number"),
        ({"q": {"a": 1, "b": "x"}}, {"q": {"a": 1.0}}, "'q' to 'q' is not a number"),
    ],
)
def test_unusable_input_is_refused_with_a_message(qrels, run, message):
    with pytest.raises(ValueError, match=message):
        evaluator.evaluate(qrels, run, "mrr")


# --- inputs that cannot be joined


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (
            {1: {"a": 1}},
            {"1": {"a": 1.0}},
            r"\(of type int, the first is 1\) is among the 1 of the",
        ),
        ({"q": {"a": 1}}, {"other": {"a": 1.0}}, "none of the 1 query ids of qrels"),
        ({"q": {1: 1}}, {"q": {"1": 1.0}}, "candidate ids of query 'q' are of type int"),
        (
            {"first": {"a": 1}, "q": {1: 1}},
            {"first": {"a": 1.0}, "q": {"1": 1.0}},
            "candidate ids of query 'q' are of type int",
        ),
        ({"q": ["a"]}, {"q": {"a": 1.0}}, "qrels has a list for the query 'q'"),
        ({"q": {"a": 1}}, {"q": 0.5}, "run has a float for the query 'q'"),
        (
            "no such file",
            {"q": {"a": 1.0}},
            "no such file is not a file. Give the path of a TREC qrels",
        ),
    ],
)
@pytest.mark.parametrize("missing", ["warn", "skip", "zero", "error"])
def test_qrels_and_run_that_cannot_be_matched_are_an_error(qrels, run, message, missing):
    with pytest.raises(evaluator.InvalidInputError, match=message):
        evaluator.evaluate(qrels, run, "mrr", missing=missing)


def test_a_run_with_only_unjudged_candidates_is_no_error():
    found = evaluator.evaluate({"q": {"a": 1}}, {"q": {"b": 1.0}}, "mrr")
    assert found.mean == {"mrr": 0.0}


def test_queries_that_the_run_lacks_are_reported_and_counted():
    message = (
        "^1 of 3 queries of the qrels are not in the run, 1 of 3 queries of the run are not in the "
        'qrels. Set missing="skip" to leave them out silently, "zero" to measure those of the '
    )
    for call in (
        lambda: evaluator.evaluate(QRELS, RUN, "mrr"),
        lambda: evaluator.compare(QRELS, {"one": RUN, "two": RUN}, "mrr"),
        lambda: evaluator.details(QRELS, RUN),
        lambda: evaluator.thresholds(QRELS, RUN),
    ):
        with pytest.warns(evaluator.MissingQueriesWarning, match=message) as warned:
            call()
        assert {one.filename for one in warned} == {__file__}
    found = evaluator.evaluate(QRELS, RUN, "mrr", missing="skip")
    assert (len(found), found.missing, found.unjudged) == (2, 1, 1)
    with pytest.raises(evaluator.InvalidInputError, match=message):
        evaluator.evaluate(QRELS, RUN, "mrr", missing="error")
    assert len(evaluator.evaluate(QRELS, RUN, "mrr", missing="zero")) == 3
    assert len(evaluator.details(QRELS, RUN, missing="zero")) == 3
    with pytest.raises(evaluator.InvalidInputError, match="run odd: none of the 3 query ids"):
        evaluator.compare(QRELS, {"one": QRELS, "odd": {7: {"a": 1.0}}}, "mrr")


def test_groups_of_a_column_of_pandas_are_by_place():
    pandas = pytest.importorskip("pandas")
    locales = pandas.Series(["de", "fr", "de"], index=[2, 0, 1])
    scores = np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])
    found = evaluator.evaluate(np.array([[1.0, 0.0]] * 3), scores, "mrr", groups=locales)
    assert {group: part.query_ids for group, part in found.by_group.items()} == {
        "de": [0, 2],
        "fr": [1],
    }


@pytest.mark.parametrize("missing", ["NA", "NaT", "nan"])
def test_a_missing_group_is_none(missing: str):
    pandas = pytest.importorskip("pandas")
    group = getattr(pandas, missing, float("nan"))
    qrels, run = {"q1": {"a": 1}, "q2": {"a": 1}}, {"q1": {"a": 1}, "q2": {"a": 1}}
    found = evaluator.evaluate(qrels, run, "mrr", groups={"q1": group, "q2": "de"})
    assert list(found.by_group) == ["de"]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_the_largest_grade_may_be_an_integer_of_numpy(kind: type):
    largest = 7 if kind is np.int8 else 31
    found = evaluator.evaluate(
        {"q": {"a": 31}}, {"q": {"a": 1}}, "err@5", err_max_grade=kind(largest)
    )
    assert found.mean["err@5"] == pytest.approx(1 - 2.0**-largest, abs=1e-11)


def test_names_of_measures_may_be_an_iterator():
    runs = {"one": {"q": {"a": 1}}, "two": {"q": {"a": 1}}}
    assert evaluator.compare({"q": {"a": 1}}, runs, iter(["mrr"]))["two"]["mrr"]


def test_masked_cells_have_no_grade_and_no_score():
    grades = np.ma.masked_array([[1, 0]], mask=[[False, True]])
    scores = np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]])
    assert evaluator.evaluate(grades, scores, "mrr,judged@2").mean == {"mrr": 1.0, "judged@2": 1.0}


def test_a_list_that_is_too_long_is_refused():
    scores = np.arange(float(1 << 20))[None]
    with pytest.raises(evaluator.InvalidInputError, match="at most 1,048,575"):
        evaluator.evaluate(np.ones_like(scores), scores, "mrr")


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("column", ["query_id", "candidate_id"])
def test_a_row_of_a_frame_without_an_id_is_refused(missing: object, column: str):
    pandas = pytest.importorskip("pandas")
    rows = {"query_id": ["q", "q"], "candidate_id": ["a", "b"], "score": [1.0, 2.0]}
    frame = pandas.DataFrame({**rows, column: [rows[column][0], missing]})
    with pytest.raises(evaluator.InvalidInputError, match="row without an id"):
        evaluator.evaluate({"q": {"a": 1}}, frame, "mrr")


def test_ids_that_became_floats_are_those_of_whole_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"query_id": ["q"] * 2, "candidate_id": [1.0, 2.0], "score": [2, 1]})
    assert evaluator.evaluate({"q": {"1": 1}}, frame, "mrr").mean == {"mrr": 1.0}


def test_a_lazy_frame_is_refused_by_its_type():
    polars = pytest.importorskip("polars")
    frame = polars.LazyFrame({"query_id": ["q"], "candidate_id": ["a"], "score": [1.0]})
    with pytest.raises(evaluator.InvalidInputError, match="LazyFrame"):
        evaluator.evaluate({"q": {"a": 1}}, frame, "mrr")


def test_details_take_the_numbers_and_ids_that_evaluate_takes():
    qrels, run = {"q": {"a\ud800": "1"}}, {"q": {"a\ud800": "9", "b": "10"}}
    assert evaluator.evaluate(qrels, run, "mrr").mean == {"mrr": 0.5}
    assert evaluator.details(qrels, run)["q"].rank == 2


def test_a_number_beyond_a_float_is_an_invalid_input():
    with pytest.raises(evaluator.InvalidInputError, match="not a number"):
        evaluator.evaluate({"q": {"a": 1}}, {"q": {"a": 10**400}}, "mrr")


def test_ids_of_subtopics_and_ages_are_those_of_candidates():
    qrels, run = {"q": {1: 2, 2: 1}}, {"q": {1: 2.0, 2: 1.0}}
    with pytest.raises(evaluator.InvalidInputError, match="of type str, the first is '1' in subt"):
        evaluator.evaluate(qrels, run, "alpha_ndcg@5", subtopics={"q": {"1": ["x"]}})
    ages = evaluator.Freshness(half_life_ms=1, ages_ms={"q": {"1": 10}})
    with pytest.raises(evaluator.InvalidInputError, match="of type str, the first is '1' in ages"):
        evaluator.evaluate(qrels, run, "ndcg", freshness=ages)


@pytest.mark.parametrize("kind", [int, str])
def test_numbers_as_ids_are_ordered_as_texts(kind: type):
    scores = {3: 0.6, 7: 0.2, 24: 0.3, 8: 0.1, 2: 0.8}
    names = {3: "wz", 7: "yx", 24: "xz", 8: "y", 2: "y"}
    found = evaluator.evaluate(
        {"q": {kind(number): 1 for number in scores}},
        {"q": {kind(number): score for number, score in scores.items()}},
        "alpha_ndcg@5",
        subtopics={"q": {kind(number): list(text) for number, text in names.items()}},
    )
    assert round(found.mean["alpha_ndcg@5"], 4) == 0.8688


def test_ids_of_several_types_may_have_subtopics():
    qrels = {"q": {1: 1, "a": 1}}
    found = evaluator.evaluate(
        qrels, qrels, "alpha_ndcg@5", subtopics={"q": {1: ["x"], "a": ["y"]}}
    )
    assert found.mean == {"alpha_ndcg@5": 1.0}


def test_a_missing_cell_is_no_grade_and_no_score():
    pandas = pytest.importorskip("pandas")
    rows = {"query_id": ["q", "q"], "candidate_id": ["a", "b"]}
    judged = pandas.DataFrame({**rows, "grade": pandas.array([1, None], "Int64")})
    run = {"q": {"a": 2.0, "b": 1.0}}
    assert evaluator.evaluate(judged, run, "mrr,judged@2").mean == {"mrr": 1.0, "judged@2": 0.5}
    ranked = pandas.DataFrame({**rows, "score": [2.0, float("nan")]})
    with pytest.raises(evaluator.InvalidInputError, match="score"):
        evaluator.evaluate({"q": {"a": 1}}, ranked, "mrr")


def test_a_column_that_is_there_twice_is_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["q", "a", 1, 2]], columns=["query_id", "doc_id", "score", "score"])
    with pytest.raises(evaluator.InvalidInputError, match="several columns score"):
        evaluator.evaluate({"q": {"a": 1}}, frame, "mrr")
