"""A backfill on a real Spark with several executors: every total equals that of one replay."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from evaluator.cli import main
from evaluator.cli.exits import UsageError
from evaluator.config import Settings
from evaluator.core.types.records import LOGS
from tests.kafka.broker import cache_directory, free_ports, resolved
from tests.kafka.page import blocks
from tests.kafka.world import World
from tests.oracle.messages import Raw
from tests.replay.running import judgment, ranking
from tests.tidy.test_project import PROJECT
from tests.tidy.tree import ROOT
from tests.waiting import until

pytestmark = pytest.mark.ecosystem

QUERIES = (3_000, 3_000, 3_000, 3_000, 20_000)
"""Queries of each task. During the last one executors are idle, and evaluate it a second time."""
SETTINGS = """
retention_ms = 600000
maturity_ms = 60000
segments = "locale"
alarms = "off"
"""
PAGE = ROOT / "docs" / "backfill-at-scale.md"
POM = Path(__file__).with_name("spark-kafka.xml")
INPUT, OUT = "s3a://archive/topics", "s3a://results/2026"
ON_S3 = "--packages org.apache.hadoop:hadoop-aws:3.4.2"
ON_KAFKA = "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"
LOCAL = {INPUT: "'in/*'", OUT: "out", ON_S3: ""}
MAPPING = """
[rankings]
trace_id = "session"
node_id = { const = "n" }
timestamp_ms = "at"
[rankings.rows]
candidate_id = "skus"
[judgments]
trace_id = "session"
node_id = { const = "n" }
timestamp_ms = "at"
source = { const = "click" }
candidate_id = "sku"
grade = { const = 1 }
"""
WINDOW = ("start_ms", "end_ms", "model", "variant", "ranker", "measure", "queries", "sum_units")
SETTINGS_OF_TOPICS = """
retention_ms = 20000
maturity_ms = 10000
out_of_orderness_ms = 1000
window_ms = 5000
alarms = "off"
"""
CONF = {
    "spark.executor.memory": "640m",
    "spark.executor.pyspark.memory": "1g",
    "spark.driver.memory": "640m",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "0.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.sql.shuffle.partitions": str(len(QUERIES)),
}


def write_archive(directory):
    """Raw records with keys, times and heartbeats; the first ones of a log are there twice."""
    import pyarrow as pa
    from pyarrow import parquet

    directory.mkdir()
    for task, n_queries in enumerate(QUERIES):
        rankings, judgments = [], []
        for n in range(n_queries):
            trace, time_ms = f"t-{task}-{n}", 1_000_000 + 500 * n
            labels = {"model": f"m{n % 2}", "segments": {"locale": f"l{n % 5}"}}
            rankings.append((time_ms, ranking(trace, time_ms, scorers={"bm25": [1, 2]}, **labels)))
            late_ms = (n % 7) * 20_000 + n % 500
            judgments.append(
                (time_ms + late_ms, judgment(trace, time_ms + late_ms, {"ab"[n % 2]: 2}))
            )
        rankings += [(rankings[-1][0], b"{"), (rankings[-1][0] + 5, None)]
        for topic, rows in (("rankings", rankings), ("judgments", sorted(judgments))):
            for name, part in (("", list(enumerate(rows))), ("again-", list(enumerate(rows))[:50])):
                columns = {
                    "topic": [topic] * len(part),
                    "partition": [task] * len(part),
                    "offset": [n for n, _ in part],
                    "timestamp": pa.array([ms for _, (ms, _) in part], pa.timestamp("ms")),
                    "value": pa.array([value for _, (_, value) in part], pa.binary()),
                }
                path = directory / (name or "all") / f"{topic}+{task}+0000000000.parquet"
                path.parent.mkdir(exist_ok=True)
                parquet.write_table(pa.table(columns), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("spark")
    write_archive(root / "in")
    (root / "worker.toml").write_text(SETTINGS)
    arguments = ["--source", f"archive://{root / 'in'}", "--out", str(root / "one")]
    arguments += ["--config", str(root / "worker.toml"), "--processes=1", "--format=parquet"]
    assert main(["replay", *arguments]) == 0
    return root


@pytest.fixture(scope="module")
def cluster(root):
    """A master and three workers with a core each, and the pids of the workers.

    Each worker has a host of its own: Spark starts no second attempt of a task on the same one,
    and so never in `local-cluster` mode.
    """
    (root / "work").mkdir(exist_ok=True)
    import pyspark

    address = f"spark://127.0.0.1:{free_ports(1)[0]}"
    daemon = [str(Path(sys.executable).with_name("spark-class"))]
    master = ["master.Master", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    worker = ["worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(root / "work")]
    commands = [[*master, "--webui-port", "0"]]
    commands += [
        [*worker, "--webui-port", "0", "--host", f"127.0.0.{n}", address] for n in (2, 3, 4)
    ]
    home = str(Path(pyspark.__file__).parent)
    environment = {**os.environ, "SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "192m"}
    with (root / "daemons").open("ab") as log, contextlib.ExitStack() as closing:
        started = []
        for kind, *options in commands:
            command = [*daemon, f"org.apache.spark.deploy.{kind}", *options]
            popen = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            closing.callback(popen.wait)
            closing.callback(popen.terminate)
            started.append(popen)

        def joined():
            assert all(of.poll() is None for of in started), (root / "daemons").read_text()
            return (root / "daemons").read_text().count("Successfully registered with master") == 3

        until(joined, details=(root / "daemons").read_text)
        yield address, [of.pid for of in started[1:]]


def submitted(root, commands, places, master="local[1]"):
    """A started command of the page; temporary folders of its tasks are in root / "tmp"."""
    for name in ("tmp", "events", "work"):
        (root / name).mkdir(exist_ok=True)
    conf = CONF | {
        "spark.eventLog.dir": f"file://{root / 'events'}",
        "spark.executorEnv.TMPDIR": str(root / "tmp"),
        "spark.local.dir": str(root / "work"),
    }
    given = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    places = places | {"spark-submit ": f"exec spark-submit --master {master} {given} "}
    for of_page, of_test in places.items():
        assert of_page in commands
        commands = commands.replace(of_page, of_test)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (root / "log").open("ab") as log:
        return subprocess.Popen(
            ["bash", "-euc", commands],
            cwd=root,
            env={**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )


def descendants(pid):
    """Process ids below a process, with their command lines."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, line = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:  # ended meanwhile
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        parents.setdefault(parent, []).append((int(entry.name), line))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += [child for child, _ in children]
    return found


def has_open(pid, folder):
    """Whether a process has a file of a folder open."""
    with contextlib.suppress(OSError):  # ended meanwhile
        return any(folder in each.readlink().parents for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def kill_an_executor(process, root, workers):
    """Kills one of two executors or more that evaluate a task; returns its number."""

    def evaluating():
        assert process.poll() is None, (root / "log").read_text()
        below = [each for worker in workers for each in descendants(worker)]
        found = [
            (pid, line)
            for pid, line in below
            if b"CoarseGrainedExecutorBackend" in line
            and any(has_open(each, root / "tmp") for each, _ in descendants(pid))
        ]
        return found if len(found) >= 2 else None

    pid, line = until(evaluating, details=(root / "log").read_text)[0]
    os.kill(pid, signal.SIGKILL)
    words = line.split(b"\0")
    return words[words.index(b"--executor-id") + 1].decode()


def rows_of(path, columns):
    from pyarrow import parquet

    rows = parquet.read_table(path).to_pylist()
    return sorted(([row[name] for name in columns] for row in rows), key=repr)


def events_of(root):
    [path] = (root / "events").iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_total_is_that_of_one_replay_with_an_executor_killed_and_speculation(root, cluster):
    from pyarrow import parquet

    master, workers = cluster
    commands, _ = blocks(PAGE, "sh")
    process = submitted(root, commands, LOCAL, master)
    killed = kill_an_executor(process, root, workers)
    assert process.wait(600) == 0, (root / "log").read_text()

    events = events_of(root)
    removed = [of for of in events if of["Event"] == "SparkListenerExecutorRemoved"]
    assert killed in {of["Executor ID"] for of in removed}
    [stage] = {
        of["Stage ID"]
        for of in events
        if of["Event"] == "SparkListenerTaskEnd"
        and of["Task End Reason"]["Reason"] == "ExecutorLostFailure"
    }
    starts = [
        of["Task Info"]
        for of in events
        if of["Event"] == "SparkListenerTaskStart" and of["Stage ID"] == stage
    ]
    assert {of["Executor ID"] for of in starts} > {killed}
    assert any(of["Speculative"] for of in starts)
    plans = [of["physicalPlanDescription"] for of in events if "SQLExecutionStart" in of["Event"]]
    tree = next(plan for plan in plans if "MapInArrow" in plan).partition("\n\n")[0]
    assert tree.count("Exchange") == 1  # for both sorts and the window

    [text] = (root / "out" / "summary").glob("part-*.txt")
    summary = json.loads(text.read_text())
    one, manifest = root / "one", json.loads((root / "one" / "manifest.json").read_bytes())
    assert summary["totals"] == json.loads((one / "totals.json").read_bytes())
    assert summary["totals"]["queries"]["settled"] == sum(QUERIES)
    for name in ("meaning", "settings", "ranges", "tasks", "code_sha256"):
        assert summary["manifest"][name] == manifest[name], name
    for name in ("settled", "settled-values", "evaluations", "evaluations-values"):
        columns = parquet.read_schema(one / f"{name}.parquet").names
        found = rows_of(root / "out" / "tables" / f"table={name}", columns)
        assert found == rows_of(one / f"{name}.parquet", columns), name
    letters = rows_of(root / "out" / "tables" / "table=dead-letters", ["line"])
    assert letters == sorted(
        [line] for line in (one / "dead-letters.ndjson").read_text().splitlines()
    )
    assert windows_of(root / "out") == expected_windows(one)


def windows_of(out):
    rows = rows_of(out / "windows", WINDOW)
    return [[*row[:-2], *map(int, row[-2:])] for row in rows]


def expected_windows(replayed):
    lines = (replayed / "windows.ndjson").read_text().splitlines()
    return sorted(([row[name] for name in WINDOW] for row in map(json.loads, lines)), key=repr)


def foreign_topics(kafka, prefix):
    """Foreign records of two tasks, one of which ends earlier; with an aborted transaction."""
    world = World(kafka, prefix)
    records = {(log, task): [] for log in LOGS for task in range(2)}
    for task, n_queries in enumerate((60, 90)):
        for n in range(n_queries):
            at, session = 1_000_000 + 1_000 * n, f"s-{task}-{n}"
            value = {"session": session, "at": at, "skus": ["a", "b"]}
            records["rankings", task].append(Raw(0, at, json.dumps(value).encode()))
            value = {"session": session, "at": at + 500, "sku": "b"}
            records["judgments", task].append(Raw(0, at + 500, json.dumps(value).encode()))
        records["rankings", task] += [Raw(0, at, b"{"), Raw(0, at, None)]
    world.produce(records)
    world.abort_transaction([("judgments", 1)])
    world.produce({("judgments", 1): [Raw(0, at, None)]})


def test_a_mapping_without_query_tables_and_with_held_topics_equals_a_replay(
    cluster, kafka, topic_prefix, tmp_path
):
    foreign_topics(kafka, topic_prefix)
    (tmp_path / "mapping.toml").write_text(MAPPING)
    prefix = f'topic_prefix = "{topic_prefix}"'
    (tmp_path / "worker.toml").write_text(SETTINGS_OF_TOPICS + prefix)
    arguments = ["--source", f"kafka://{kafka.bootstrap}", "--out", str(tmp_path / "one")]
    arguments += ["--config", str(tmp_path / "worker.toml"), "--at-end=hold", "--processes=1"]
    assert main(["replay", *arguments, "--mapping", str(tmp_path / "mapping.toml")]) == 0

    version = ON_KAFKA.rpartition(":")[2]
    folder = cache_directory().parent / f"spark-kafka-{version}"
    jars = resolved(POM, folder, f"-Dspark={version}").glob("*.jar")
    _, commands = blocks(PAGE, "sh")
    places = {
        ON_KAFKA: f"--conf spark.cores.max=1 --jars {','.join(map(str, jars))}",
        "localhost:9092": kafka.bootstrap,
        "rankings,judgments": f"{topic_prefix}rankings,{topic_prefix}judgments",
    }
    process = submitted(tmp_path, commands, places, cluster[0])
    assert process.wait(600) == 0, (tmp_path / "log").read_text()

    [text] = (tmp_path / "held" / "summary").glob("part-*.txt")
    summary, one = json.loads(text.read_text()), tmp_path / "one"
    manifest = json.loads((one / "manifest.json").read_bytes())
    assert summary["totals"] == json.loads((one / "totals.json").read_bytes())
    assert summary["totals"]["queries"]["started"] == 60 + 90
    assert summary["totals"]["queries"]["settled"] < 60 + 90
    assert summary["manifest"]["settings"]["at_end"] == "hold"
    for name in ("meaning", "settings", "ranges", "tasks"):
        assert summary["manifest"][name] == manifest[name], name
    tables = {path.name for path in (tmp_path / "held" / "tables").glob("table=*")}
    assert tables == {"table=tasks", "table=windows", "table=dead-letters"}
    windows = windows_of(tmp_path / "held")
    assert windows == expected_windows(one)
    of_tasks = rows_of(tmp_path / "held" / "tables" / "table=windows", ["line"])
    last_ms = max(json.loads(line)["end_ms"] for [line] in of_tasks)
    assert windows[-1][1] < last_ms, "the task that is ahead has more"
    stages = [of["Stage Info"] for of in events_of(tmp_path) if "StageCompleted" in of["Event"]]
    evaluating = [of for of in stages if "MapInArrow" in json.dumps(of["RDD Info"])]
    assert {of["Number of Tasks"] for of in evaluating} == {1}, "one partition of the shuffle"


def test_the_packages_of_the_page_fit_the_installed_spark():
    import pyspark

    jars = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert f"hadoop-client-api-{ON_S3.rpartition(':')[2]}.jar" in jars
    assert any(name.startswith("scala-library-2.13.") for name in jars)
    of_kafka = ON_KAFKA.rpartition(":")[2]
    assert of_kafka.rpartition(".")[0] == pyspark.__version__.rpartition(".")[0]
    text = PAGE.read_text("utf-8")
    assert ON_S3 in text
    assert ON_KAFKA in text


@pytest.fixture
def some(root, tmp_path):
    """A file with two records, which can be written again with another column."""
    from pyarrow import parquet

    (tmp_path / "worker.toml").write_text(SETTINGS)
    table = parquet.read_table(root / "in" / "again-" / "rankings+0+0000000000.parquet")[:2]
    path = tmp_path / "in" / "part.parquet"
    path.parent.mkdir(parents=True)

    def write(**columns):
        changed = table
        for name, of in columns.items():
            changed = changed.set_column(changed.column_names.index(name), *of)
        parquet.write_table(changed, path)

    return write


def test_an_error_in_a_task_is_a_line_and_an_exit_code(some, tmp_path):
    import pyarrow as pa

    some(offset=("offset", pa.array([7, 7], pa.int64())))
    commands, _ = blocks(PAGE, "sh")
    process = submitted(tmp_path, commands, LOCAL | {INPUT: "in"})
    log = tmp_path / "log"
    assert process.wait(600) == 3, log.read_text()
    [line] = [line for line in log.read_text().splitlines() if line.startswith("evaluator: ")]
    assert "two different records with the offset 7. Leave out the records" in line
    assert len(line) < 200


def test_the_program_of_the_page_renames_a_column_and_reads_times_without_a_zone_in_utc(
    some, tmp_path
):
    import pyarrow as pa

    times_ms = [4_000_000, 4_000_500]  # in the zone of the session an hour less: both are `future`
    some(
        timestamp=("written_at", pa.array(times_ms, pa.timestamp("ms"))),
        value=("value", pa.array([ranking(str(of), of) for of in times_ms], pa.binary())),
    )
    [program] = blocks(PAGE, "python")
    for of_page, of_test in ((INPUT, "in"), (OUT, "out"), ("n_partitions=64", "n_partitions=1")):
        assert of_page in program
        program = program.replace(of_page, of_test)
    (tmp_path / "program.py").write_text(program)
    zone = "--conf spark.sql.session.timeZone=Europe/Berlin"
    process = submitted(tmp_path, f"spark-submit {zone} program.py", {})
    assert process.wait(600) == 0, (tmp_path / "log").read_text()
    [text] = (tmp_path / "out" / "summary").glob("part-*.txt")
    summary = json.loads(text.read_text())
    assert summary["manifest"]["ranges"]["rankings-0"] == {"start": 0, "end": 2}
    assert summary["manifest"]["settings"]["measures"] == ["ndcg@10"]
    assert summary["totals"]["queries"]["settled"] == 2


def test_the_extra_has_all_that_spark_needs_for_tables():
    project = PROJECT["project"]
    given = project["dependencies"] + project["optional-dependencies"]["spark"]
    needed = {
        of.name
        for of in map(Requirement, requires("pyspark"))
        if of.marker and of.marker.evaluate({"extra": "sql"})
    }
    assert "pandas" in needed
    assert needed <= {Requirement(each).name for each in given}


def test_errors_of_arguments_and_columns_have_a_remedy(tmp_path, capsys):
    from evaluator import spark

    arguments = ["--input", "in", "--out", str(tmp_path / "out"), "--option", "header"]
    assert spark.main(arguments) == 2
    assert "--option header has no value: write NAME=VALUE" in capsys.readouterr().err
    records = SimpleNamespace(sparkSession=None, columns=["topic", "offset", "value"])
    with pytest.raises(UsageError, match="the records have no column partition, timestamp"):
        spark.results_of(records, Settings())
