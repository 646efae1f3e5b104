"""`evaluator fit` with its defaults: the validation, the served order, and its quality."""

import json
from random import Random

import numpy as np
import pytest

from evaluator.cli import main
from evaluator.replay.fit import FitRefused
from evaluator.replay.fit import fit as run_fit
from evaluator.replay.validation import PATIENCE, validation_mask
from tests import ranked_data
from tests.cli.test_fit import PLAIN, flat, seeded_groups
from tests.core.learned import settled_query
from tests.linear_models import full_batch_softmax, ndcg, of_sklearn

README = ("--epochs=10",)
"""The command of the README."""


@pytest.fixture
def fit(tmp_path, capsys):
    """Exit code, stdout, stderr and the record."""

    def run(rows, *arguments):
        path, out = tmp_path / "samples.ndjson", tmp_path / "weights.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main(["fit", f"--samples={path}", f"--out={out}", "--force", *arguments])
        return code, *capsys.readouterr(), json.loads(out.read_bytes())

    return run


# --- quality ---


def tuned(weights, chosen_by, measured_on) -> float:
    """The value on one part of the weights that are best on another part."""
    best = max(weights, key=lambda each: ndcg(chosen_by, each))
    return ndcg(measured_on, best)


@pytest.mark.slow
@pytest.mark.parametrize("name", ranked_data.ALL)
@pytest.mark.filterwarnings("ignore")
def test_the_command_of_the_readme_matches_tuned_linear_models(fit, name):
    learn, measure = ranked_data.ALL[name]()
    learn = [query for query in learn if query[1].any()]
    code, out, _, record = fit(ranked_data.rows(learn), *README)
    assert code == 0
    loss = "lambdarank" if name == "wine" else "softmax"
    assert record["settings"]["loss"] == loss
    assert out.startswith("loss = lambdarank: better than softmax by 0.0") == (name == "wine")
    value = ndcg(measure, np.array(record["weights"]))
    cut = len(learn) * 4 // 5
    assert value >= tuned(full_batch_softmax(learn[:cut]), learn[cut:], measure) - 0.01
    assert value >= tuned(of_sklearn(learn[:cut]), learn[cut:], measure) - 0.02


@pytest.mark.slow(alone=False)
def test_no_other_loss_is_tried_if_one_is_set_or_without_validation(fit):
    rows = ranked_data.rows(ranked_data.wine()[0])
    for more in ("--keep-loss", "--validate=0", "--set=label_mode=gain"):
        _, out, _, record = fit(rows, "--epochs=1", more)
        assert record["settings"]["loss"] == "softmax"
        assert "lambdarank" not in out


@pytest.mark.slow(alone=False)
def test_another_loss_that_diverges_changes_nothing(fit, monkeypatch):
    def run(log, plan):
        if plan.learner.loss == "lambdarank":
            raise FitRefused("its weights are not finite")
        return run_fit(log, plan)

    monkeypatch.setattr("evaluator.cli.learning.run_fit", run)
    code, _, _, record = fit(ranked_data.rows(ranked_data.wine()[0]), "--epochs=1")
    assert (code, record["settings"]["loss"]) == (0, "softmax")


# --- validation ---


@pytest.mark.slow(alone=False)
def test_a_share_of_the_groups_is_for_validation_from_200_groups_on(fit):
    groups = list(seeded_groups(200))
    assert "validation" not in fit(flat(groups[:199]))[3]
    record = fit(flat(groups))[3]
    assert (record["validation"]["groups"], record["validation"]["seed"]) == (40, 0)
    assert {each["groups"] + each["skipped"] for each in record["history"]} == {160}
    assert "validation" not in fit(flat(groups), "--validate=0")[3]
    assert fit(flat(groups[:30]), "--validate=0.5")[3]["validation"]["groups"] == 15


def test_all_queries_of_a_trace_are_for_validation_or_none_and_the_seed_chooses():
    rng = np.random.default_rng(0)
    queries = [
        settled_query(i, Random(i), trace_id=f"t{trace}")
        for i, trace in enumerate(rng.integers(30, size=300).tolist())
    ]
    masks = [validation_mask(queries, 0.2, seed) for seed in (0, 0, 1)]
    assert masks[0] == masks[1] != masks[2]
    for mask in masks:
        sides = {(query.trace_id, side) for query, side in zip(queries, mask, strict=True)}
        assert len(sides) == len({query.trace_id for query in queries})
        assert 60 <= sum(mask) < 60 + 20
    assert not any(validation_mask(queries, 0.0, 0))


@pytest.mark.slow(alone=False)
def test_the_weights_are_those_of_the_best_epoch_with_early_stopping(fit):
    rows = flat(seeded_groups(240, noise=2.0))
    _, out, _, record = fit(rows, "--epochs=300")
    best = record["validation"]["best_epoch"]
    history = record["history"]
    values = [each["validation_ndcg@10"] for each in history]
    assert len(history) == best + PATIENCE < 300
    assert values[best - 1] == max(values)
    assert f"updates in {best + PATIENCE} epochs, the best is {best}; " in out
    again = fit(rows, f"--epochs={best}")[3]
    assert (again["weights"], again["updates"]) == (record["weights"], record["updates"])
    assert again["history"] == history[:best]


@pytest.mark.slow(alone=False)
def test_the_values_of_both_parts_equal_those_of_replay(fit, tmp_path):
    rows = flat(seeded_groups(240))
    record = fit(rows)[3]
    samples, weights = tmp_path / "samples.ndjson", tmp_path / "weights.json"
    code = main(
        ["replay", f"--samples={samples}", f"--weights={weights}", f"--out={tmp_path / 'r'}"]
    )
    lines = (tmp_path / "r" / "evaluations.ndjson").read_bytes().splitlines()
    values = [json.loads(line)["values"]["weights"]["ndcg@10"] for line in lines]
    of_best = record["history"][record["validation"]["best_epoch"] - 1]
    n_validated = record["validation"]["groups"]
    both = n_validated * of_best["validation_ndcg@10"] + (240 - n_validated) * of_best["ndcg@10"]
    assert (code, len(values)) == (0, 240)
    assert both == pytest.approx(sum(values))


def test_the_loss_of_the_validation_is_that_of_the_weights(fit):
    """With one epoch the loss of a later fit from these weights, at no rate, is the same."""
    rows = flat(seeded_groups(60))
    options = (*PLAIN[1:], "--epochs=1", "--validate=0.5")
    record = fit(rows, *options)[3]
    still = fit(
        rows,
        *options,
        f"--set=initial_weights={','.join(map(repr, record['weights']))}",
        "--set=learning_rate=1e-300",
    )[3]
    loss = record["history"][0]["validation_loss"]
    assert loss == still["history"][0]["validation_loss"]
    assert loss != record["history"][0]["mean_loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--validate=0.95"], "--validate 0.95 is not accepted. Give 0 to 0.9."),
        (["--validate=-0.1"], "is not accepted"),
        (["--validate=nan"], "is not accepted"),
        (["--validate=0.001"], "leaves all of them to learn from. Set another --validate, or 0."),
    ],
)
def test_a_share_that_leaves_an_empty_part_is_refused(tmp_path, capsys, arguments, message):
    path = tmp_path / "samples.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in flat(seeded_groups(20))))
    assert main(["fit", f"--samples={path}", f"--out={tmp_path / 'w'}", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_explicit_settings_without_validation_give_a_fixed_record(fit):
    record = fit(flat(seeded_groups(60)), *PLAIN, "--epochs=3", "--model=m")[3]
    assert record["checksum"] == CHECKSUM


CHECKSUM = "45feb941e8b38a081cd435e9061d292500afe281079b40e1418b3db023dae4b2"
"""The checksum of the version before validation was added."""


@pytest.mark.slow(alone=False)
def test_the_progress_bar_has_the_values_of_both_parts(fit, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, _, err, record = fit(flat(seeded_groups(240)), "--epochs=2")
    bar = err[err.rindex("fit, softmax:") :]
    for name in ("validation_loss", "ndcg@10", "validation_ndcg@10"):
        assert f"{name}={record['history'][-1][name]:.3g}" in bar
    assert f"loss={record['history'][-1]['mean_loss']:.3g}, " in bar


# --- comparison with the served order ---


def served(groups, score):
    """Rows with scores, from the features and the label of each candidate."""
    return [{**row, "score": score(row["features"], row["label"])} for row in flat(groups)]


@pytest.mark.slow(alone=False)
def test_better_weights_than_the_served_order_are_shown_with_it(fit):
    code, out, err, _ = fit(served(seeded_groups(240), lambda features, _: features[1]))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[1].split("  ")[0] == "groups"
    assert lines[2].startswith("validation         48")
    assert lines[3].startswith("learned from      192")
    assert lines[4] == "served: by score"


@pytest.mark.slow(alone=False)
def test_worse_weights_than_the_served_order_exit_with_5(fit):
    code, out, err, record = fit(served(seeded_groups(240, noise=3.0), lambda _, label: label))
    assert code == 5
    assert err.count("\n") == 1
    assert "weights.json are worse than the served order (by score). Do not use them." in err
    assert "validation " in out
    assert record["validation"]


@pytest.mark.slow(alone=False)
def test_without_validation_the_training_groups_decide(fit):
    rows = served(seeded_groups(100, noise=3.0), lambda _, label: label)
    code, out, err, _ = fit(rows)
    assert code == 5
    assert "are worse than the served order (by score), even on the groups that they were" in err
    assert "validation " not in out
    code, out, err, _ = fit(rows, "--validate=0")
    assert (code, "served" in out, err) == (0, False, "")


@pytest.mark.slow(alone=False)
def test_the_served_order_is_the_row_order_without_scores(fit):
    best_first = [sorted(group, key=lambda each: -each[1]) for group in seeded_groups(240)]
    code, out, err, _ = fit(flat(best_first))
    assert code == 5
    assert "served: the order of the rows, because the samples have no scores" in out
    assert "worse than the served order (the order of the rows" in err


@pytest.mark.slow(alone=False)
def test_an_insignificant_difference_is_warned_of(fit):
    """Served in a random order, learned from features that are unrelated to the labels."""
    random = Random(3)
    rows = served(seeded_groups(240), lambda *_: random.random())
    rows = [{**row, "features": [random.random()]} for row in rows]
    code, _, err, _ = fit(rows)
    assert code == 0
    assert "the interval contains 0: there is no evidence that the weights are better." in err


def test_too_few_queries_for_an_interval_are_warned_of(fit):
    code, out, err, _ = fit(flat([[((1.0,), 2.0), ((0.0,), 0.0)]]), "--epochs=10")
    assert (code, "none" in out) == (0, True)
    assert "the first one needs 50 groups to learn from" in err
    assert "too few queries for an interval: there is no evidence" in err
    assert "contains 0" not in err


@pytest.mark.slow(alone=False)
def test_an_increasing_loss_is_warned_of(fit):
    rows = flat(seeded_groups(60))
    step = ("--set=optimizer=sgd", "--set=schedule=constant", "--set=scale=none")
    assert "the mean loss rose from" in fit(rows, *step, "--set=learning_rate=30")[2]
    assert "the mean loss rose from" not in fit(rows, *step, "--set=learning_rate=0.01")[2]
