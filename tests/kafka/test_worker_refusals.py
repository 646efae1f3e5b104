"""The refusals of commands, with their exit codes and remedies."""

import asyncio
import socket

import pytest

from tests.kafka.broker import free_ports
from tests.kafka.process import Process
from tests.kafka.test_admin import make
from tests.kafka.world import World

pytestmark = pytest.mark.kafka


@pytest.fixture
def run(kafka, topic_prefix, tmp_path):
    """Runs a command to its end on a broker; returns exit code, output and last line."""

    def run(*arguments, bootstrap=kafka.bootstrap):
        source = ("--source", f"kafka://{bootstrap}", "--set", f"topic_prefix={topic_prefix}")
        process = Process(tmp_path, *arguments, *source)
        try:
            code = process.wait()
        finally:
            process.end()
        errors = process.err.splitlines()
        assert "Traceback" not in process.err
        return code, process.out, errors[-1] if errors else ""

    return run


def make_topics(kafka, prefix, **counts):
    asyncio.run(make(kafka, prefix, counts))


def test_unequal_partition_counts_are_refused_naming_both(kafka, topic_prefix, run):
    make_topics(kafka, topic_prefix, rankings=2, judgments=3)
    for command in (["run"], ["run", "--until-end"], ["topics", "plan"]):
        code, _, error = run(*command)
        assert code == 3
        assert f"{topic_prefix}rankings has 2 partitions" in error
        assert f"{topic_prefix}judgments has 3" in error
    code, out, _ = run("check")
    assert code == 5
    assert f"{topic_prefix}rankings has 2 partitions" in out


def test_missing_topics_are_refused_and_created(kafka, topic_prefix, run):
    for n_missing in (11, 9):
        code, _, error = run("run", "--set=alarms=on")
        assert code == 3
        assert error.count(topic_prefix) == n_missing
        assert "evaluator topics create" in error
        assert f"{topic_prefix}alarm-commands" in error
        if n_missing == 11:
            make_topics(kafka, topic_prefix, rankings=2, judgments=2)
    code, out, _ = run("topics", "plan")
    assert (code, out.count("missing")) == (0, 9)
    code, out, _ = run("topics", "create")
    assert (code, out.count("created")) == (0, 9)
    assert run("topics", "plan")[1].count("missing") == 0
    assert run("run", "--until-end", "--set", "http_port=0")[0] == 0


def test_all_topics_are_created_and_checked(topic_prefix, run):
    assert run("topics", "plan")[0] == 3  # unknown partition counts
    code, out, _ = run("topics", "create", "--partitions", "3")
    assert code == 0
    assert out.count(f"created {topic_prefix}") == 11
    code, out, _ = run("check")
    assert code == 0, out
    assert "error" not in out
    code, out, _ = run("topics", "create")
    assert (code, out.strip()) == (0, "no topic is missing")


def test_an_unreachable_broker_is_reported(run):
    (port,) = free_ports(1)
    code, out, _ = run("check", bootstrap=f"127.0.0.1:{port}")
    assert code == 3
    assert f"127.0.0.1:{port}" in out
    for command in (["topics", "plan"], ["topics", "create", "--partitions", "1"]):
        code, _, error = run(*command, bootstrap=f"127.0.0.1:{port}")
        assert code == 3
        assert f"127.0.0.1:{port}" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "retention=1"], "The nearest one is retention_ms"),
        (["--set", "measures=ndgc@10"], "Measures: top1, top3, hit@k, mrr, mrr@k, ndcg"),
        (["--set", "maturity_ms=99999999999"], "Set maturity_ms to at most retention_ms"),
        (["--set", "idle_ms=-1"], "idle_ms is -1 (--set). Accepted: an integer >= 0"),
        (["--until-the-end"], "unrecognized arguments: --until-the-end"),
    ],
)
def test_misspelt_arguments_are_refused_at_once(run, arguments, message):
    code, _, error = run("run", *arguments)
    assert code == 2
    assert message in error


def test_an_unsupported_source_is_refused(tmp_path):
    process = Process(tmp_path, "run", "--source", "file://logs")
    assert process.wait() == 2
    assert "kafka://HOST:PORT" in process.err


def test_a_port_in_use_is_refused(kafka, topic_prefix, run):
    World(kafka, topic_prefix, n_tasks=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, error = run("run", "--set", f"http_port={port}")
    assert code == 2
    assert f"http://127.0.0.1:{port}" in error
    assert "http_port" in error


def test_a_session_that_the_broker_does_not_allow_is_refused(world, run):
    code, _, error = run("run", "--set", "session_timeout_ms=86400000")
    assert code == 3
    assert "session_timeout_ms" in error
    assert "group.max.session.timeout.ms" in error
