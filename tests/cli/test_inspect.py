"""`evaluator inspect`: one query with its messages, outcomes and values."""

import json
import re
import shutil

import pytest

from evaluator.cli import main
from evaluator.replay.inspection import (
    MAX_KEPT,
    MAX_QUERIES,
    MAX_SHOWN,
    Evidence,
    Found,
    MessagePosition,
    Sought,
    report,
)

T0 = 1_763_690_000_000
HOUR_MS = 3_600_000
KEY = {"schema_version": 1, "trace_id": "t", "node_id": "n"}
RANKING = {
    **KEY,
    "timestamp_ms": T0,
    "model": "m",
    "query": "find it",
    "candidate_ids": ["a", "b", "c"],
    "scores": [1, 3, 2],
    "scorers": {"bm25": [9, 8, 7]},
}
FIRST = {**KEY, "timestamp_ms": T0 + 60_000, "grades": {"c": 1}, "judgment_id": "1", "source": "s"}


def judgment(after_ms, grades, **changes):
    return {**KEY, "timestamp_ms": T0 + after_ms, "grades": grades, **changes}


JUDGMENTS = [
    FIRST,  # applied
    FIRST,  # duplicate
    FIRST | {"grades": {"c": 0}},  # conflicting
    judgment(120_000, {"z": -2}),  # a withdrawal for a candidate that was not ranked
    judgment(130_000, {"a": "x"}),  # malformed
    judgment(2 * HOUR_MS, {"b": 2}),  # after maturity
    {**judgment(60_000, {"a": 1}), "node_id": "other"},  # its ranking never comes
    # half an hour past the retention of t, n, and within key_reserved_ms
    {**judgment(49 * HOUR_MS // 2, {"a": 1}), "trace_id": "later"},
    {**judgment(49 * HOUR_MS // 2 + 1, {"a": 3})},  # late
]
RANKINGS = [RANKING, RANKING, RANKING | {"query": "another"}]
RANKINGS += [RANKING | {"trace_id": "later", "timestamp_ms": T0 + 49 * HOUR_MS // 2}]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs")
    for name, rows in (("rankings", RANKINGS), ("judgments", JUDGMENTS)):
        (directory / f"{name}.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = directory / "out"
    assert main(["replay", f"--source=file://{directory}", f"--out={out}"]) == 0
    return directory, out


def inspected(capsys, *arguments):
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def outcomes(text):
    """(message, offset) to outcome."""
    lines = text.split("\nMessages\n")[1].split("\n\n")[0].splitlines()
    at = lines[0].index("outcome")
    found = [(line.split()[0], line.split()[1], line[at:].split()[0]) for line in lines[1:]]
    return {(message, int(offset)): outcome for message, offset, outcome in found}


def test_every_message_has_the_outcome_of_the_replay(logs, capsys):
    directory, out = logs
    text = inspected(capsys, "t", "n", f"--source=file://{directory}", f"--results={out}")
    assert outcomes(text) == {
        ("rankings-0", 0): "started",
        ("rankings-0", 1): "duplicate",
        ("rankings-0", 2): "conflicting",
        ("judgments-0", 0): "applied",
        ("judgments-0", 1): "duplicate",
        ("judgments-0", 2): "conflicting",
        ("judgments-0", 3): "applied",
        ("judgments-0", 4): "malformed",
        ("judgments-0", 5): "applied",
        ("judgments-0", 8): "late",
    }
    ledger = json.loads((out / "totals.json").read_text())["ledger"]["judgments"]
    assert {name: n for name, n in ledger.items() if n and name != "read"} == {
        "applied": 4,
        "duplicate": 1,
        "conflicting": 1,
        "malformed": 1,
        "late": 1,
        "orphan": 1,
    }  # of all traces
    assert "judgments-0       5  2025-11-21T03:53:20Z   7,200 s" in text
    assert "z=withdrawn" in text
    assert "Settled as judged at 2025-11-21T02:53:20Z" in text


def test_the_ranking_is_in_rank_order_with_running_and_settled_grades(logs, capsys):
    directory, out = logs
    text = inspected(capsys, "t", "n", f"--source=file://{directory}", f"--results={out}")
    table = [line.split() for line in text.split("\nRanking\n")[1].splitlines()[:4]]
    assert table == [
        ["rank", "candidate", "served", "bm25", "grade", "settled", "grade"],
        ["1", "b", "3", "8", "2"],  # graded after maturity
        ["2", "c", "2", "7", "1", "1"],
        ["3", "a", "1", "9"],
    ]
    values = [line.split() for line in text.split("\nValues (revision 3)\n")[1].splitlines()]
    # b, of grade 2, is first; settled only c, at rank 2, had a grade: 1 / 2
    assert ["served", "mrr", "1.0000", "0.5000"] in values
    assert ["served", "top1", "1.0000", "0.0000"] in values


def test_a_result_directory_alone_has_the_values_and_the_top_of_the_ranking(logs, capsys):
    text = inspected(capsys, "t", "n", f"--results={logs[1]}")
    assert ["served", "1", "b", "3", "2"] in [line.split() for line in text.splitlines()]
    assert ["served", "mrr", "1.0000", "0.5000"] in [line.split() for line in text.splitlines()]
    assert set(outcomes(text).values()) == {"conflicting", "malformed", "late"}


def test_a_source_alone_has_the_messages_of_all_nodes_of_the_trace(logs, capsys):
    text = inspected(capsys, "t", f"--source=file://{logs[0]}")
    first, second = text.split("\nTrace t, node other\n")
    assert first.startswith("Trace t, node n\n")
    assert outcomes(second) == {("judgments-0", 6): "early"}
    assert "no ranking was found: it waits up to early_ms" in second


def test_the_dead_letter_of_an_orphan_has_the_reason(logs, capsys):
    text = inspected(capsys, "t", "other", f"--results={logs[1]}")
    assert outcomes(text) == {("judgments-0", 6): "orphan"}


def test_an_unknown_trace_is_named(logs, capsys):
    output = inspected(capsys, "no\x1b[2J", f"--results={logs[1]}")
    assert output.startswith("Nothing was found of trace no\\x1b[2J. It may have expired")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Name --source, the --results of a replay, or both"),
        (["--results=/nowhere"], 3, "Name the --out directory of `evaluator replay`"),
        (["--source=file:///nowhere"], 3, "nowhere"),
        (["--source=file://x", "--from=yesterday"], 2, "is not a time"),
    ],
)
def test_errors_name_the_remedy(arguments, code, words, capsys):
    assert main(["inspect", "t", *arguments]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"topic":{}}', "[" * 100_000, '{"value":3}'])
def test_a_damaged_line_of_dead_letters_is_an_error(line, logs, tmp_path, capsys):
    results = tmp_path / "out"
    shutil.copytree(logs[1], results)
    with (results / "dead-letters.ndjson").open("a") as file:
        file.write(f"{line}\n")
    assert main(["inspect", "t", f"--results={results}"]) == 3
    assert "has a line that `evaluator replay` does not write" in capsys.readouterr().err


FOREIGN = """
[rankings]
topic = "serps"
trace_id = "session"
node_id = "query"
timestamp_ms = { path = "at", unit = "s" }
[rankings.rows]
each = "hits"
candidate_id = "sku"
[judgments]
topic = "clicks"
trace_id = "session"
node_id = "query"
source = { const = "click" }
[judgments.rows]
each = "events"
timestamp_ms = "at"
candidate_id = "sku"
grade = "n"
"""


def test_messages_of_foreign_records_have_their_outcomes(tmp_path, capsys):
    """Each message of one record has the outcome of its own dead letter."""
    (tmp_path / "m.toml").write_text(FOREIGN)
    serp = {"session": 7, "query": "q", "at": T0 // 1000, "hits": [{"sku": 1}, {"sku": 2}]}
    clicks = [  # (milliseconds after the ranking, candidate)
        {"query": "q", "events": [(1_000, 2), (49 * HOUR_MS // 2, 1)]},  # the second one is late
        {"query": "none", "events": [(2_000, 1)]},
        {"query": "q", "events": [(3_000, None)]},  # refused: it has no candidate
    ]
    for each in clicks:
        events = [{"at": T0 + after, "sku": sku, "n": 1} for after, sku in each["events"]]
        each |= {"session": 7, "events": events}
    later = serp | {"session": 8, "at": T0 // 1000 + 50 * 3_600}
    other = serp | {"hits": [{"sku": 3}]}
    for name, rows in (("serps", [serp, other, later]), ("clicks", clicks)):
        (tmp_path / f"{name}.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = (f"--source=file://{tmp_path}", f"--mapping={tmp_path / 'm.toml'}")
    assert main(["replay", *source, f"--out={tmp_path / 'out'}"]) == 0
    capsys.readouterr()
    both = inspected(capsys, "7", *source, f"--results={tmp_path / 'out'}")
    without, of_q = both.split("\nTrace 7, node q\n")
    assert outcomes(without) == {("judgments-0", 1): "orphan"}
    rows = of_q.split("\nMessages\n")[1].split("\n\n")[0].splitlines()[1:]
    graded = [re.findall(r"(\d=1) +([a-z]+)", row) for row in rows]
    assert graded == [[], [], [("2=1", "applied")], [("1=1", "late")]]
    assert outcomes(of_q)["rankings-0", 1] == "conflicting"
    assert "Settled as judged" in of_q


def test_a_query_with_grades_and_without_a_value_is_settled_as_judged(tmp_path, capsys):
    for name, row in (("rankings", RANKING), ("judgments", judgment(60_000, {"c": 0}))):
        (tmp_path / f"{name}.ndjson").write_text(f"{json.dumps(row)}\n")
    source, out = f"--source=file://{tmp_path}", tmp_path / "out"
    assert main(["replay", source, f"--out={out}", "--set=empty=skip"]) == 0
    assert json.loads((out / "settled.ndjson").read_text())["values"] == {}
    assert json.loads((out / "totals.json").read_text())["queries"]["settled_judged"] == 1
    capsys.readouterr()
    assert "Settled as judged" in inspected(capsys, "t", f"--results={out}")


def test_ids_with_escapes_are_found():
    value = rb'{"trace_id": "\u0074", "node_id": "n"}'
    assert Sought("t", None).document(value) is not None
    assert Sought("t", "m").document(value) is None
    quoted = json.dumps({"trace_id": 'a"b', "node_id": "n"}).encode()
    assert Sought('a"b', "n").document(quoted) is not None
    assert Sought("t", None).document(b"t") is None


def test_long_tables_are_shortened():
    value = json.dumps(judgment(0, {"a": 1})).encode()
    positions = [MessagePosition("judgments", 0, n) for n in range(MAX_SHOWN + 7)]
    evidence = Evidence({position: Found(position, value) for position in positions})
    assert "... and 7 more" in "\n".join(report(Sought("t", "n"), evidence))


def test_evaluations_of_another_format_are_refused(tmp_path, capsys):
    for name in ("settled", "dead-letters"):
        (tmp_path / f"{name}.ndjson").touch()
    for row in (KEY, {**KEY, "revision": "x"}, {**KEY, "revision": 1, "top3": []}):
        (tmp_path / "evaluations.ndjson").write_text(json.dumps(row))
        assert main(["inspect", "t", "--results", str(tmp_path)]) == 3
        assert "not of the form that the evaluator writes" in capsys.readouterr().err


def test_the_number_of_records_kept_of_a_trace_is_limited(tmp_path, capsys):
    row = {**KEY, "revision": 1, "grades": {}, "top3": {}, "values": {}}
    other = json.dumps({**row, "node_id": "m"})
    lines = [other, *(json.dumps({**row, "node_id": str(n)}) for n in range(MAX_KEPT))]
    (tmp_path / "evaluations.ndjson").write_text("\n".join(lines))
    for name in ("settled", "dead-letters"):
        (tmp_path / f"{name}.ndjson").touch()
    assert main(["inspect", "t", "--results", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert f"{MAX_KEPT - MAX_QUERIES} more queries of the trace" in output
    assert f"more than {MAX_KEPT:,} messages, evaluations" in output
    assert main(["inspect", "t", "m", "--results", str(tmp_path)]) == 0
    assert "more than" not in capsys.readouterr().out
