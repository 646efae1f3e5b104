"""`evaluator compare` for a user: replays of files, output, exit codes."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from math import log2
from pathlib import Path

import pytest

from evaluator.cli import main
from tests.comparison.rows import put as put_rows
from tests.comparison.rows import row
from tests.replay.running import judgment, put, ranking

N_TRACES = 60
IDS = ("a", "b", "c")
FIRST = 1 / log2(2)
SECOND, THIRD = 1 / log2(3), 1 / log2(4)


def logs(directory, *, scores=(3.0, 2.0, 1.0)):
    """Two queries in each of 60 traces. The served order is a, b, c, that of bm25 is the reverse.

    Of every three traces, `a` is relevant in the first two, and `c` in the third.
    """
    rankings, judgments = [], []
    for trace in range(N_TRACES):
        for node in ("n", "m"):
            name, time_ms = f"t-{trace:02}", 1_000 * trace
            more = {
                "node_id": node,
                "query": f"query {trace}",
                "scorers": {"bm25": [1.0, 2.0, 3.0]},
            }
            rankings.append(ranking(name, time_ms, IDS, scores, **more))
            grades = {"c" if trace % 3 == 2 else "a": 1}
            judgments.append(judgment(name, time_ms + 10, grades, node_id=node))
    put(directory, "rankings.ndjson", rankings)
    return put(directory, "judgments.ndjson", judgments)


def replayed(tmp_path, name, *settings, **how):
    source, out = logs(tmp_path / f"logs-{name}", **how), tmp_path / name
    options = [part for setting in settings for part in ("--set", setting)]
    assert main(["replay", f"--source=file://{source}", f"--out={out}", *options]) == 0
    return out


@pytest.fixture(scope="module")
def replayed_once(tmp_path_factory):
    return replayed(tmp_path_factory.mktemp("once"), "out")


@pytest.fixture
def out(tmp_path, replayed_once):
    """A replay of its own for every test: some move it, or break it."""
    return shutil.copytree(replayed_once, tmp_path / "out")


@pytest.fixture
def ask(capsys):
    """Exit code, stdout and stderr of a comparison, with few resamples if none are given."""

    def run(*arguments):
        code = main(["compare", "--resamples=500", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def facts(text):
    return {(one["ranker"], one["measure"]): one for one in json.loads(text)["comparisons"]}


def test_the_numbers_are_computed_from_the_queries(ask, out):
    code, text, err = ask("--source", out, "--measure=ndcg@10", "--measure=mrr", "--format=json")
    assert (code, err) == (0, "")
    found = facts(text)
    assert list(found) == [("bm25", "ndcg@10"), ("bm25", "mrr")]
    mrr = found["bm25", "mrr"]
    # 80 queries have their relevant candidate first with served and third with bm25; 40 the
    # other way round.
    assert (mrr["pairs"], mrr["traces"]) == (120, 60)
    assert (mrr["wins"], mrr["ties"], mrr["losses"]) == (40, 0, 80)
    assert mrr["baseline_mean"] == pytest.approx((80 * 1 + 40 / 3) / 120, abs=1e-12)
    assert mrr["ranker_mean"] == pytest.approx((80 / 3 + 40) / 120, abs=1e-12)
    ndcg = found["bm25", "ndcg@10"]
    assert ndcg["difference"] == pytest.approx((80 - 40) / 120 * (THIRD - FIRST), abs=1e-12)
    assert ndcg["low"] < ndcg["difference"] < ndcg["high"] < 0
    assert ndcg["verdict"] == "worse"
    assert len(ndcg["changes"]) == 10
    assert ndcg["changes"][0]["query"] == "query 0"
    assert ndcg["changes"][0]["baseline"]["top3"][0] == ["a", 3.0]


@pytest.mark.parametrize("kind", ["running", "settled"])
def test_the_means_equal_those_of_totals_exactly(ask, out, kind):
    rows = json.loads((out / "totals.json").read_bytes())["totals"]
    totals = {(row["ranker"], row["measure"]): row["mean"] for row in rows if row["kind"] == kind}
    _, text, _ = ask("--source", out, f"--kind={kind}", "--format=json")
    found = facts(text)
    assert {measure for _, measure in found} == {measure for _, measure in totals}
    for (ranker, measure), one in found.items():
        assert one["ranker_mean"] == totals[ranker, measure]
        assert one["baseline_mean"] == totals["served", measure]


def test_results_before_and_after_a_rerank_are_compared(ask, tmp_path, capsys):
    before = replayed(tmp_path, "before", "measures=ndcg@10")
    after = replayed(tmp_path, "after", "measures=ndcg@10", scores=(2.0, 3.0, 1.0))
    capsys.readouterr()
    code, text, err = ask("--source", f"{before},{after}", "--ranker=served", "--format=json")
    assert (code, err) == (0, "")
    found = facts(text)["served", "ndcg@10"]
    # `a` fell from the first place to the second in 80 of 120 queries, `c` stayed third.
    assert found["difference"] == pytest.approx(80 / 120 * (SECOND - FIRST), abs=1e-12)
    assert (found["wins"], found["ties"], found["losses"]) == (0, 40, 80)


def test_sources_may_be_given_separately_and_as_urls(ask, out):
    expected = ask("--source", f"{out},{out}", "--ranker=served")
    assert expected[0] == 0
    assert ask("--source", out, "--source", out, "--ranker=served") == expected
    assert ask("--source", f"file://{out},file://{out}", "--ranker=served") == expected


def test_a_comma_in_the_name_of_a_directory_is_no_separator(ask, out):
    expected = ask("--source", out)
    moved = out.rename(out.parent / "a,b")
    assert ask("--source", moved) == expected


def test_settled_values_may_be_compared(ask, out):
    code, text, _ = ask("--source", out, "--kind=settled", "--measure=mrr", "--format=json")
    assert code == 0
    assert json.loads(text)["kind"] == "settled"
    assert facts(text)["bm25", "mrr"]["pairs"] == 120


@pytest.mark.slow(alone=False)
def test_rankers_are_compared_by_weighted_clicks_if_the_replay_has_them(ask, tmp_path, capsys):
    shown = {"scores": (3, 2, 1), "scorers": {"new": [2, 1, 3]}}  # new: c, a, b
    seen = [1, 0.5, 0.25]
    clicked = [("a", seen), ("a", seen), ("c", seen), ("abc", [0.001] * 3)]
    rankings, judgments = [], []
    for trace, (ids, propensities) in enumerate(clicked):
        rankings.append(ranking(f"t-{trace}", 0, IDS, propensities=propensities, **shown))
        judgments.append(judgment(f"t-{trace}", 10, dict.fromkeys(ids, 1)))
    source, out = put(tmp_path / "logs", "rankings.ndjson", rankings), tmp_path / "out"
    put(source, "judgments.ndjson", judgments)
    settings = "--set=measures=mrr,ips_dcg@3,ips_clicks", "--set=ips_clip=1000"
    assert main(["replay", f"--source=file://{source}", f"--out={out}", *settings]) == 0
    capsys.readouterr()
    code, text, err = ask("--source", out, "--format=json")
    assert (code, json.loads(text)["kind"]) == (0, "settled")
    assert "clicks have weights in settled ips_dcg@3 only; if judgments are clicks, mrr " in err
    found = facts(text)
    of_heavy = 1000 * (FIRST + SECOND + THIRD)  # clicks of the last query, alike for both
    weighted = found["new", "ips_dcg@3"]
    assert weighted["baseline_mean"] == pytest.approx((2 * FIRST + 4 * THIRD + of_heavy) / 4)
    assert weighted["ranker_mean"] == pytest.approx((2 * SECOND + 4 * FIRST + of_heavy) / 4)
    assert (weighted["wins"], weighted["ties"], weighted["losses"]) == (1, 1, 2)
    assert found["new", "mrr"]["difference"] == pytest.approx((-1 / 2 - 1 / 2 + 2 / 3) / 4)
    assert found["new", "ips_clicks"]["ranker_mean"] == (1 + 1 + 4 + 3 * 1000) / 4
    _, text, err = ask("--source", out, "--kind=running", "--format=json")
    assert list(facts(text)) == [("new", "mrr")]
    assert "clicks have weights in settled ips_dcg@3 only" in err
    (out / "manifest.json").unlink()
    _, text, _ = ask("--source", out, "--measure=ips_dcg@3", "--format=json")
    assert facts(text)["new", "ips_dcg@3"]["ranker_mean"] == weighted["ranker_mean"]


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_the_same_input_and_seed_give_the_same_bytes_in_any_directory(ask, out, form, tmp_path):
    expected = ask("--source", out, f"--format={form}", "--seed=5")
    other = ask("--source", out.rename(tmp_path / "elsewhere"), f"--format={form}", "--seed=5")
    assert expected == other


def test_resamples_confidence_and_top_are_used(ask, out):
    options = ["--measure=mrr", "--top=3", "--resamples=50", "--confidence=0.5", "--seed=9"]
    options.append("--format=json")
    _, text, _ = ask("--source", out, *options)
    document = json.loads(text)
    assert [document[name] for name in ("resamples", "confidence", "seed")] == [50, 0.5, 9]
    narrow = facts(text)["bm25", "mrr"]
    assert len(narrow["changes"]) == 3
    _, text, _ = ask("--source", out, "--measure=mrr", "--confidence=0.99", "--format=json")
    wide = facts(text)["bm25", "mrr"]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def started(*arguments, **environment):
    """The output of a separate process, as bytes."""
    command = [sys.executable, "-m", "evaluator", "compare", *map(str, arguments)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


@pytest.mark.slow
def test_names_are_not_shortened_without_a_terminal(out):
    lines = started("--source", out, "--measure=ndcg@10", COLUMNS="20").decode().splitlines()
    assert lines[4].startswith("bm25    ndcg@10    120      60  ")


@pytest.mark.parametrize(
    ("form", "encoding", "query"),
    [("table", "ascii", "\\u2602"), ("json", "utf-8", "☂")],
)
@pytest.mark.slow
def test_an_output_with_a_limited_encoding_gets_replacement_characters(
    tmp_path, form, encoding, query
):
    rows = [row("t", {"served": 1.0, "bm25": 0.5}, query="☂")]
    folder = put_rows(tmp_path / "out", rows)
    text = started("--source", folder, f"--format={form}", PYTHONIOENCODING="ascii")
    assert query in text.decode(encoding)


# --fail-below


def test_a_difference_that_may_be_below_the_limit_exits_with_5(ask, out):
    code, text, err = ask("--source", out, "--measure=mrr", "--fail-below=-0.05")
    assert code == 5
    assert "worse" in text
    assert err.startswith("evaluator: 1 of 1 differences may be below -0.05: bm25 mrr (from -0.")
    assert err.count("\n") == 1


def test_a_difference_that_is_significantly_above_the_limit_exits_with_0(ask, out):
    code, _, err = ask("--source", out, "--baseline=bm25", "--measure=mrr", "--fail-below", "0.01")
    assert (code, err) == (0, "")


def test_the_lower_bound_of_the_interval_decides_not_the_mean(ask, out):
    _, text, _ = ask("--source", out, "--measure=mrr", "--format=json")
    found = facts(text)["bm25", "mrr"]
    between = (found["low"] + found["difference"]) / 2
    assert ask("--source", out, "--measure=mrr", f"--fail-below={between}")[0] == 5
    code, text, _ = ask("--source", out, "--measure=mrr", f"--fail-below={found['low']}")
    assert code == 0
    _, text, _ = ask("--source", out, "--format=csv", f"--fail-below={between}")
    rows = {row["measure"]: row["fails"] for row in csv.DictReader(io.StringIO(text))}
    assert rows["mrr"] == "true"
    assert rows["top3"] == "false"  # three candidates: always a hit, no difference at all


# Refusals


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--source=OUT", "--baseline=nobody"], 2, "no ranker nobody. It has: served, bm25."),
        (["--source=OUT", "--ranker=nobody"], 2, "no ranker nobody. It has: served, bm25."),
        (["--source=OUT", "--ranker=served"], 2, "served is the baseline"),
        (["--source=OUT", "--measure=ndgc@10"], 2,
         "no measure ndgc@10. It has: top1, top3, mrr, ndcg@10, map@10."),
        (["--source=OUT,OUT,OUT"], 2, "give one directory"),
        (["--source="], 2, "give one directory"),
        (["--source=OUT,"], 2, "give one directory"),
        (["--source=kafka://localhost:9092"], 2,
         "Run `evaluator replay --source kafka://localhost:9092 --out DIR` first"),
        (["--source=OUT", "--top=-1"], 2, "--top -1 is not accepted. Give 0 to 10000."),
        (["--source=OUT", "--resamples=0"], 2, "Give 1 to 1000000."),
        (["--source=OUT", "--confidence=1"], 2, "Give above 0 and below 1."),
        (["--source=OUT", "--confidence=nan"], 2, "Give above 0 and below 1."),
        (["--source=OUT", "--seed=-1"], 2, "Give 0 or more."),
        (["--source=OUT", "--fail-below=nan"], 2, "Give a finite number."),
        (["--source=OUT/nowhere"], 3, "is not a directory"),
        (["--source=OUT/.."], 3, "has no evaluations.ndjson"),
        (["--source=OUT/evaluations.ndjson"], 3, "is not a directory"),
        (["--source=" + "x" * 5000], 3, "File name too long"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_the_remedy(ask, out, arguments, code, words):
    found, text, err = ask(*(part.replace("OUT", str(out)) for part in arguments))
    assert (found, text, err.count("\n")) == (code, "", 1)
    assert err.startswith("evaluator: ")
    assert words in err


def test_an_invalid_line_is_named_with_its_number(ask, out):
    path = out / "evaluations.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b'"values":', b'"value":')
    path.write_bytes(b"".join(lines))
    code, text, err = ask("--source", out)
    assert (code, text, err.count("\n")) == (3, "", 1)
    assert "line 7 is not a row of a replay: Object missing required field `values`" in err


def test_a_truncated_file_is_refused(ask, out):
    path = out / "evaluations.ndjson"
    path.write_bytes(path.read_bytes()[:-40])
    code, _, err = ask("--source", out)
    assert code == 3
    assert "line 120, the last, is cut off" in err


def test_settings_that_differ_are_warned_of(ask, tmp_path, capsys):
    one = replayed(tmp_path, "one")
    other = replayed(tmp_path, "other", "empty=skip", "retention_ms=7200000")
    capsys.readouterr()
    code, text, err = ask("--source", one, "--source", other, "--measure=mrr")
    assert code == 0
    assert err == (
        "evaluator: warning: the sources were replayed with different settings (empty: zero and "
        "skip; retention_ms: 86400000 and 7200000), which may be the cause of differences.\n"
    )
    assert "warning" not in text


def test_a_progress_bar_is_for_terminals_only(ask, out, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, text, err = ask("--source", out)
    assert "compare: 100%" in err
    assert "resample: 100%" in err
    assert "100%" not in text


def test_the_page_names_every_option_and_every_member(ask, out, capsys):
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text("utf-8")
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) == 12
    assert [option for option in options if f"`{option}" not in page] == []
    document = json.loads(ask("--source", out, "--format=json")[1])
    (comparison, *_) = document["comparisons"]
    members = {*document, *comparison, *comparison["changes"][0]}
    section = page.split("## For programs")[1].split("## ")[0]
    assert [name for name in members if not re.search(rf"\b{name}\b", section)] == []
