"""A whole worker over complete inputs, against the oracle."""

import json
import shutil
import subprocess

import pytest

from evaluator.cli import main
from tests.kafka.world import lanes
from tests.oracle.measures import ONE
from tests.oracle.messages import Raw
from tests.oracle.totals import comparable
from tests.worker.traffic import LONG_AGO_MS, traffic

pytestmark = pytest.mark.kafka


def test_until_end_writes_every_output_once_and_commits_the_ends(world, start):
    world.append({0: traffic(1), 1: traffic(2)})
    assert start(world, "--until-end", max_poll_records=100).wait() == 0
    assert world.committed() == world.ends()
    world.truth().check_outputs(world.outputs())


def test_until_end_passes_empty_partitions_and_ends_of_transactions(make_world, start):
    world = make_world(3)
    world.append({0: traffic(1, n_queries=30)})
    world.abort_transaction([("rankings", 0), ("rankings", 1), ("judgments", 0)])
    for _ in range(2):  # the second one restores up to an offset beyond the last record
        worker = start(world, "--until-end")
        assert worker.wait() == 0
        assert world.committed() == world.ends()
    world.truth().check_outputs(world.outputs())


def test_a_live_worker_reports_the_totals_of_the_oracle_on_every_path(world, start):
    world.append({0: traffic(3), 1: traffic(4)})
    worker = start(world, max_poll_records=150)
    worker.until_read(world.ends())
    truth = world.truth()
    totals = worker.totals
    assert comparable(totals) == truth.totals
    assert totals["tasks"] == [0, 1]
    check_samples(worker.samples(), totals)
    check_status(worker.document("/status"), world.ends(), truth)
    if shutil.which("promtool"):
        _, text = worker.get("/metrics")
        check = ["promtool", "check", "metrics"]
        done = subprocess.run(check, input=text, capture_output=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    assert worker.get("/readyz")[0] == worker.get("/livez")[0] == worker.get("/")[0] == 200
    assert worker.stop() == 0
    truth.check_outputs(world.outputs())


def test_inspect_finds_a_query_in_all_topics(world, start, capsys):
    def raw(trace, after_ms, **members):
        time_ms = LONG_AGO_MS + after_ms
        of_all = {"schema_version": 1, "trace_id": trace, "node_id": "n", "timestamp_ms": time_ms}
        return Raw(0, time_ms, json.dumps(of_all | members).encode(), trace.encode())

    lists = {"candidate_ids": ["a", "b"], "scores": [2, 1]}
    judgments = [raw("sought", 1, grades={"b": 1}), raw("sought", 2, grades={"b": "x"})]
    later = 10**8  # settles the first query
    world.produce(
        {
            ("rankings", 1): [raw("sought", 0, **lists), raw("other", later, **lists)],
            ("judgments", 1): [*judgments, raw("other", later, grades={"b": 1})],
        }
    )
    assert start(world, "--until-end").wait() == 0
    arguments = [
        "inspect",
        "sought",
        f"--source=kafka://{world.bootstrap}",
        f"--from={LONG_AGO_MS}",
    ]
    assert main([*arguments, f"--set=topic_prefix={world.prefix}"]) == 0
    text = capsys.readouterr().out
    assert "rankings-1 " in text
    assert "malformed  schema: " in text
    assert "Settled as judged" in text
    assert ["served", "mrr", "0.5000", "0.5000"] in [line.split() for line in text.splitlines()]
    assert (
        main(
            [*arguments[:-1], f"--from={LONG_AGO_MS + later}", f"--set=topic_prefix={world.prefix}"]
        )
        == 0
    )
    assert "rankings-1" not in capsys.readouterr().out


def labels(*names_and_values):
    """As they are written in a scrape."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(names_and_values)) + "}"


def check_samples(samples, totals):
    """A scrape of the only process of a group equals its totals."""
    for row in totals["totals"]:
        measure = {"hit@3": "top3"}.get(row["measure"], row["measure"])
        names = [(n, row[n]) for n in ("model", "variant", "ranker")]
        series = labels(*names, ("measure", measure))
        if row["kind"] == "settled":
            assert samples[f"evaluator_quality_queries_total{series}"] == row["queries"]
            score = samples[f"evaluator_quality_value_total{series}"]
            assert score == row["sum_units"] / ONE
        elif row["queries"]:
            assert samples[f"evaluator_running_value_mean{series}"] == row["mean"]
    for topic, ledger in totals["ledger"].items():
        started = {"started": totals["queries"]["started"]} if topic == "rankings" else {}
        for outcome, count in {**ledger, **started}.items():
            if outcome not in ("read", "open", "expired", "early", "left_out"):
                series = labels(("topic", topic), ("outcome", outcome))
                assert samples[f"evaluator_messages_total{series}"] == count, series
    judged = {"yes": 0.0, "no": 0.0}
    for name, value in samples.items():
        if name.startswith("evaluator_queries_settled_total"):
            judged["yes" if 'judged="yes"' in name else "no"] += value
    assert judged["yes"] == totals["queries"]["settled_judged"] > 0
    assert judged["no"] == totals["queries"]["settled_unjudged"] > 0
    assert samples["evaluator_open_queries"] == totals["ledger"]["rankings"]["open"]
    assert samples["evaluator_early_judgments"] == totals["ledger"]["judgments"]["early"]
    applied = totals["ledger"]["judgments"]["applied"]
    assert samples["evaluator_judgment_delay_seconds_count"] == applied
    for reason, count in totals["dead_letters"].items():
        assert samples[f"evaluator_dead_letters_total{labels(('reason', reason))}"] == count


def check_status(status, ends, truth):
    for task in status["tasks"]:
        number = task["task"]
        for log in ("rankings", "judgments"):
            assert task["positions"][log] == task["end_offsets"][log] == ends[f"{log}-{number}"]
        assert task["lag"] == {"rankings": 0, "judgments": 0}
        assert task["clocks_ms"] == truth.tasks[number].clocks_ms
        assert task["watermark_ms"] == truth.tasks[number].watermark
    assert status["tasks_owned"] == [0, 1]


def test_query_texts_are_not_emitted_with_emit_query_off(world, start):
    world.append({0: traffic(1, n_queries=20)})
    assert start(world, "--until-end", emit_query="off").wait() == 0
    evaluations = lanes(world.outputs(), "evaluations")
    assert evaluations
    assert not [record for record in evaluations if "query" in json.loads(record.value)]
