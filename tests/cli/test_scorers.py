"""`replay --scorer`: functions of other programs as rankers."""

import json
from random import Random

import numpy as np
import pytest

from evaluator.cli import main
from tests.replay import running

MODULE = """
import numpy as np

calls = []

def second(features):
    calls.append(len(features))
    return features[:, 1]

def spoils(features):
    features *= 0
    return -features[:, 0]

def short(features):
    return features[:-1, 0]

def broken(features):
    raise ZeroDivisionError("by zero")

def odd(features):
    return np.where(features[:, 0] > 0.9, np.nan, features[:, 0])

class Model:
    def predict(self, features):
        return -features[:, 1]

model, number = Model(), 7
"""
N = 40


@pytest.fixture
def replay(tmp_path, capsys, monkeypatch):
    """Exit code, stderr and written files."""
    random = Random(2)
    rankings = [
        running.ranking(
            f"t{i}", 1_000 * i, ["a", "b", "c"], [3, 2, 1],
            features=[[random.random(), random.random()] for _ in "abc"],
        )
        for i in range(N)
    ]  # fmt: skip
    judgments = [running.judgment(f"t{i}", 1_000 * i, {"b": 1}) for i in range(N)]
    logs = running.put(tmp_path / "logs", "rankings.ndjson", rankings)
    running.put(logs, "judgments.ndjson", judgments)
    here = tmp_path / f"of_{tmp_path.name}"
    here.mkdir()
    name = f"scorers_{here.name}"
    (here / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(here)
    monkeypatch.setattr("sys.path", [str(here), *__import__("sys").path])

    def run(*scorers, more=()):
        out = tmp_path / "out"
        given = [f"--scorer={each.replace('M:', name + ':')}" for each in scorers]
        code = main(["replay", f"--source=file://{logs}", f"--out={out}", "--force", *given, *more])
        return code, capsys.readouterr().err, running.contents(out) if out.exists() else {}

    run.rankings, run.name, run.logs = rankings, name, logs
    return run


def test_a_function_is_a_ranker_beside_the_served_order(replay):
    code, err, files = replay("mine=M:second", "worst=M:model.predict")
    rows = running.rows(files, "evaluations.ndjson")
    assert (code, err, len(rows)) == (0, "", N)
    for row, ranking in zip(
        sorted(rows, key=lambda r: int(r["trace_id"][1:])), replay.rankings, strict=True
    ):
        second = [one[1] for one in json.loads(ranking)["features"]]
        order = np.argsort([-x for x in second]).tolist()
        assert row["rank"] == {
            "served": 2, "mine": 1 + order.index(1), "worst": 3 - order.index(1),
        }  # fmt: skip
        assert row["top3"]["mine"][0][1] == max(second)
    settings = json.loads(files["manifest.json"])["settings"]
    assert settings["scorers"] == {
        "mine": f"{replay.name}:second",
        "worst": f"{replay.name}:model.predict",
    }


def test_the_scores_of_a_function_are_compared(replay, tmp_path, capsys):
    replay("mine=M:second")
    command = ["compare", f"--source={tmp_path / 'out'}", "--ranker=mine", "--measure=mrr"]
    assert main([*command, "--resamples=100", "--format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    ranks = [
        1 + sum(one[1] > features[1][1] for one in features)
        for features in (json.loads(ranking)["features"] for ranking in replay.rankings)
    ]
    assert found["ranker_mean"] == pytest.approx(sum(1 / rank for rank in ranks) / N)
    assert found["difference"] == pytest.approx(
        found["ranker_mean"] - 0.5
    )  # the served order has rank 2


def test_many_rankings_are_scored_by_one_call(replay):
    from importlib import import_module

    calls = import_module(replay.name).calls
    assert replay("mine=M:second", more=["--set=max_poll_records=1000"])[0] == 0
    assert calls == [3 * N]
    calls.clear()
    assert replay("mine=M:second", more=["--set=max_poll_records=10"])[0] == 0
    assert calls == [30] * 4


def test_nothing_else_changes_even_if_a_function_modifies_its_argument(replay):
    expected = running.rows(replay()[2], "evaluations.ndjson")
    code, _, files = replay("bad=M:spoils", "mine=M:second")
    assert code == 0
    for row, other in zip(running.rows(files, "evaluations.ndjson"), expected, strict=True):
        for members in ("rank", "top3", "values"):
            assert row[members].pop("bad")
            assert row[members].pop("mine")
        assert row == other


def test_a_ranker_with_non_finite_scores_is_left_out(replay):
    code, err, files = replay("odd=M:odd")
    n_left = sum(any(one[0] > 0.9 for one in json.loads(r)["features"]) for r in replay.rankings)
    assert code == 0
    assert f"scorer odd was measured on {N - n_left} of {N} rankings: {n_left} would have" in err
    values = [row["values"] for row in running.rows(files, "evaluations.ndjson")]
    assert sum("odd" in each for each in values) == N - n_left


@pytest.mark.parametrize(
    ("scorer", "code", "message"),
    [
        ("mine", 2, "is not NAME=MODULE:FUNCTION"),
        ("mine=M", 2, "is not NAME=MODULE:FUNCTION"),
        ("mine=M:", 2, "is not NAME=MODULE:FUNCTION"),
        ("served=M:second", 2, "the name must be a new one"),
        ("=M:second", 2, "the name must be a new one"),
        ("mine=no_such_module_here:f", 2, "ModuleNotFoundError: No module named"),
        ("mine=M:absent", 2, "AttributeError"),
        ("mine=M:number", 2, "is of type int; it must be a function"),
        ("mine=M:short", 3, "returned an array (119,) for features (120, 2). Return one score"),
        ("mine=M:broken", 3, "the scorer mine raised ZeroDivisionError: by zero"),
    ],
)
def test_an_unusable_function_is_refused_without_output_files(replay, scorer, code, message):
    found, err, files = replay(scorer)
    assert (found, err.count("\n"), files) == (code, 1, {})
    assert message in err


def test_a_name_must_be_unique_and_not_that_of_a_scorer_in_a_message(replay):
    code, err, _ = replay("mine=M:second", "mine=M:second")
    assert (code, "the name must be a new one" in err) == (2, True)
    own = [running.ranking("t0", features=[[1, 2], [3, 4]], scorers={"mine": [1, 2]})]
    running.put(replay.logs, "rankings.ndjson", own)
    code, err, _ = replay("mine=M:second")
    assert (code, "t0, n has a scorer named mine already" in err) == (3, True)


@pytest.mark.slow
def test_models_of_lightgbm_and_scikit_learn_are_measured(replay, tmp_path, monkeypatch):
    lightgbm = pytest.importorskip("lightgbm", reason="installed by `make test`")
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    features = rng.random((600, 2))
    target = features[:, 1] * 3
    data = lightgbm.Dataset(features, target, free_raw_data=False)
    booster = lightgbm.train({"verbose": -1, "num_leaves": 15, "num_threads": 1}, data, 50)
    booster.save_model(tmp_path / "model.txt")
    monkeypatch.setattr("tests.cli.test_scorers.linear", LinearRegression().fit(features, target))
    (tmp_path / "models_of_others.py").write_text(
        f"import lightgbm\nfrom tests.cli import test_scorers\n"
        f"score = lightgbm.Booster(model_file={str(tmp_path / 'model.txt')!r}).predict\n"
        "linear = test_scorers.linear.predict\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, err, files = replay(
        "lgbm=models_of_others:score", "sklearn=models_of_others:linear", "truth=M:second"
    )
    assert (code, err) == (0, "")
    ranks = [row["rank"] for row in running.rows(files, "evaluations.ndjson")]
    assert [each["sklearn"] for each in ranks] == [each["truth"] for each in ranks]
    assert sum(each["lgbm"] == each["truth"] for each in ranks) > 0.8 * N


linear = None
