"""Numbers beyond the range of floats, timestamps or the integer texts of Python."""

import asyncio
import json

import pytest

from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.cli import live, main, views
from evaluator.cli.wiring import needed_input_ms
from evaluator.config import load_settings
from evaluator.config.settings import SPECS
from evaluator.ports import InputHealth
from tests.faulty_broker import FaultyBroker
from tests.repeats import first_quick
from tests.replay.running import judgment, put, ranking
from tests.waiting import finished

UNBOUNDED = [name for name, spec in SPECS.items() if spec.kind.accepts.startswith("an integer >=")]
DIGITS_5000 = "9" * 5_000  # more than Python turns into an integer


@pytest.fixture
def place(tmp_path, monkeypatch):
    put(tmp_path / "logs", "rankings.ndjson", [ranking("t", 1_000)])
    put(tmp_path / "logs", "judgments.ndjson", [judgment("t", 1_500)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", first_quick(*UNBOUNDED))
def test_a_worker_accepts_durations_and_counts_beyond_the_float_range(name):
    given = [f"{each}={10**400}" for each in {name, "retention_ms"}]

    async def run():
        settings = load_settings(environment={}, assignments=given)
        broker = FaultyBroker()
        for ms in (1_000, 10**9):
            broker.append("rankings", 0, b"t", ranking(f"t-{ms}", ms), ms)
            broker.append("judgments", 0, b"t", judgment(f"t-{ms}", ms), ms)
        source = MemorySource(broker)
        worker = live.new_worker(source, MemorySink(broker), MemoryStateDirectory(), settings)
        running = asyncio.create_task(worker.run())
        while not running.done() and worker.snapshot.last_commit_ms is None:  # noqa: ASYNC110  # a commit sets no event
            await asyncio.sleep(0)
        await worker._heartbeats.append_due(worker._tasks.values(), begin_at=0.0)
        health = InputHealth(needed_input_ms(settings))
        process = views.ProcessViews(worker, settings, health=lambda: health)
        text, _ = await process.metrics("")
        worker.stop()
        await finished(running)
        return text.decode(), json.dumps(process.status())

    metrics, status = asyncio.run(run())
    assert "evaluator_input_retention_needed_seconds +Inf" in metrics
    assert str(10**400) in status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            [f"--set=retention_ms={DIGITS_5000}"],
            "retention_ms is a number that is too long",
        ),
        ([f"--set=http_port={DIGITS_5000}"], "http_port is a number that is too long (--set)"),
        (["--set=learning_rate=1e999"], "learning_rate is 1e999 (--set). Accepted:"),
        ([f"--set=learning_rate={DIGITS_5000}"], "learning_rate is a number that is too long"),
        ([f"--set=measures=ndcg@{DIGITS_5000}"], "... (5"),
        ([f"--from={DIGITS_5000}"], "is later than the latest timestamp of a message"),
        (["--from=99999999999999999999"], "99999999999999999999 is later than the latest"),
        ([f"--to={2**63}"], f"later than the latest timestamp of a message, {2**63 - 1}"),
        (["--from=1795362081"], "has 10 digits and epoch milliseconds have 13"),
        (["--to=20261001"], "Write dates as YYYY-MM-DD"),
        (["--to=10000-01-01"], "'10000-01-01' is not a time"),
        (["--to=2026-02-30"], "'2026-02-30' is not a time"),
        ([f"--to=-{DIGITS_5000}"], "is not a time"),
        ([f"--from={DIGITS_5000}-01-01"], "is not a time"),
    ],
)
def test_a_number_out_of_range_is_refused_in_one_short_line(place, capsys, arguments, words):
    assert main(["replay", "--source=file://logs", "--out=out", *arguments]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n"), len(err) < 700) == ("", 1, True)
    assert not (place / "out").exists()


@pytest.mark.parametrize("source", ["file", "environment"])
def test_the_error_of_a_number_is_the_same_for_all_places(place, capsys, monkeypatch, source):
    if source == "file":
        (place / "c.toml").write_text(f"retention_ms = {DIGITS_5000}")
    else:
        monkeypatch.setenv("EVALUATOR_RETENTION_MS", DIGITS_5000)
    config = ["--config=c.toml"] if source == "file" else []
    assert main(["replay", "--source=file://logs", "--out=out", *config]) == 2
    err = capsys.readouterr().err
    assert "a number that is too long" in err
    assert (err.count("\n"), "set_int_max_str_digits" in err) == (1, False)


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "--source=file://logs", "--out=w", f"--epochs={DIGITS_5000}"],
        ["fit", "--source=file://logs", "--out=w", "--epochs=1e9"],
        ["compare", "--source=x", f"--top={DIGITS_5000}"],
        ["compare", "--source=x", "--confidence=1e999"],
        ["demo", f"--seed={DIGITS_5000}"],
        ["topics", "create", "--source=kafka://a:1", "--partitions=99999999999999999999"],
        ["topics", "create", "--source=kafka://a:1", "--replication-factor=99999"],
        ["weights", "roll-back", "--source=kafka://a:1", "--reason=x", f"--to={DIGITS_5000}"],
    ],
    ids=lambda command: " ".join(command)[:40],
)
def test_an_option_out_of_range_is_refused_in_one_short_line(place, capsys, command):
    try:
        code = main(command)
    except SystemExit as ended:  # as argparse ends
        code = ended.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n"), len(err) < 300) == (2, "", 1, True)


def test_a_time_before_all_timestamps_means_the_beginning(place):
    assert main(["replay", "--source=file://logs", "--out=all", "--from=0001-01-01"]) == 0
    totals = json.loads((place / "all" / "totals.json").read_text())
    assert totals["ledger"]["rankings"]["read"] == 1
