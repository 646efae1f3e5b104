"""The demo's report: exact means from settled records, whole names, plain words."""

import json

from evaluator.core.types.tally import GroupedTally, Tally
from evaluator.demo.report import (
    LEDGER_MEANINGS,
    Mean,
    ledger_table,
    n_read,
    quality_table,
    report,
    split_settled,
    total,
)
from evaluator.demo.world import REGRESSION_MS
from evaluator.exposition.snapshot import Snapshot, TaskView
from evaluator.tables import format_table
from evaluator.wire.records import OutputRecord

SERIES = ("tool-ranker", "canary", "served", "ndcg@10")


def settled(event_time_ms: int, value: float | None) -> OutputRecord:
    values = {} if value is None else {"served": {"ndcg@10": value}}
    row = {
        "event_time_ms": event_time_ms,
        "model": "tool-ranker",
        "variant": "canary",
        "grades": {} if value is None else {"book_flights": 2},
        "values": values,
    }
    return OutputRecord(b"key", json.dumps(row).encode())


def view(task: int, tally: Tally) -> TaskView:
    return TaskView(task, {}, {}, {}, None, 0, 0, 0, False, GroupedTally.of(tally))


def test_settled_queries_are_split_at_the_regression_and_unjudged_ones_have_no_value():
    records = [settled(99, 1.0), settled(99, 0.5), settled(100, 0.25), settled(101, None)]
    before, after = split_settled(records, regression_ms=100)[SERIES]
    assert before == Mean(2, 3 << 39)  # 1.0 + 0.5
    assert after == Mean(1, 1 << 38)


def test_the_quality_table_shows_settled_running_before_after_and_change():
    tally: Tally = {
        ("settled", *SERIES, "queries"): 3,
        ("settled", *SERIES, "sum_units"): 7 << 38,  # 1.75 / 3 = 0.5833
        ("settled", *SERIES, "square_units"): 0,
        ("running", *SERIES, "queries"): 4,
        ("running", *SERIES, "sum_units"): 3 << 40,  # 3 / 4
    }
    line = quality_table(tally, {SERIES: (Mean(2, 3 << 39), Mean(1, 1 << 38))}).splitlines()[1]
    assert line.split() == [*SERIES, "3", "0.5833", "0.7500", "0.7500", "0.2500", "-0.5000"]


def test_a_series_without_settled_queries_has_dashes_and_no_zero():
    tally: Tally = {("settled", *SERIES, "queries"): 0, ("settled", *SERIES, "sum_units"): 0}
    line = quality_table(tally, {}).splitlines()[1]
    assert line.split() == [*SERIES, "0", "-", "-", "-", "-", "-"]


def test_tallies_of_tasks_add_up_and_heartbeats_are_not_messages():
    snapshot = Snapshot(
        (
            view(0, {("rankings", "read"): 5, ("rankings", "heartbeat"): 2}),
            view(1, {("rankings", "read"): 4, ("judgments", "read"): 1}),
        )
    )
    assert total(snapshot)[("rankings", "read")] == 9
    assert n_read(snapshot) == 5 - 2 + 4 + 1


def test_the_ledger_table_has_every_outcome_with_a_description():
    text = ledger_table({("judgments", "applied"): 12_345})
    assert "12,345" in text
    assert len(text.splitlines()) == len(LEDGER_MEANINGS) + 1


def test_a_table_never_cuts_a_name_and_aligns_numbers_right():
    long = "a" * 300
    text = format_table(["name", "n"], [[long, "1"], ["b", "1000"]], numbers=[1])
    assert text.splitlines() == [
        "name" + " " * 296 + "     n",
        long + "     1",
        "b" + " " * 299 + "  1000",
    ]


def test_the_report_begins_with_the_drop_and_the_injected_fault():
    records = [settled(REGRESSION_MS - 1, 1.0), settled(REGRESSION_MS, 0.25)]
    text = report(Snapshot((view(0, {}),)), records, [])
    assert text.startswith(
        "Largest decrease at half time: tool-ranker canary, ranker served, ndcg@10 "
        "from 1.0000 to 0.2500 (-0.7500).\n"
        "A fault was planted in the canary of tool-ranker at half time; "
        "it should be the largest decrease.\n"
        "No alarm begins: alarms compare with past weeks, and these are eight hours.\n\n"
    )


def test_the_report_states_that_the_addresses_were_up_during_the_run():
    look_at = [("live page", "http://127.0.0.1:9464/")]
    text = report(Snapshot((view(0, {}),)), [], look_at)
    words = " ".join(text[text.index("Addresses of") :].split())
    assert "available during the run; `make demo ARGS=--keep` keeps them" in words
    assert words.endswith("live page http://127.0.0.1:9464/")
