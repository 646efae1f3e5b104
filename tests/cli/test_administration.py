"""`evaluator topics` and `evaluator schema`, without a broker."""

import os
import shlex
import sys
from threading import Event

import pytest

from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.adapters.kafka import TopicPlan
from evaluator.adapters.kafka.administration import CLEANUP, FURTHER_SETTINGS
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.adapters.rocksdb.directory import is_in_use
from evaluator.cli import administration, main
from evaluator.cli.wiring import connection_of
from evaluator.config import Settings
from evaluator.ports import Finding
from tests.tidy.tree import ROOT, table_below

SOURCE = "--source=kafka://localhost:9092"


@pytest.fixture
def broker(monkeypatch):
    """A function with the partition counts of both inputs; `created` has the created topics."""
    created = []

    def with_partitions(rankings, judgments):
        async def plan_topics(connection, *, topic_prefix, partitions, timestamp_bound_ms):
            n = rankings or judgments or partitions
            inputs = {"rankings": rankings, "judgments": judgments}
            # An output may have more partitions than the inputs; its count cannot be requested.
            return [
                *(
                    TopicPlan(f"p-{name}", n, "delete", there, name, {"bound": timestamp_bound_ms})
                    for name, there in inputs.items()
                ),
                TopicPlan("p-totals", 64, "compact", 64),
            ]

        async def create_topics(connection, plan, *, replication_factor):
            created.extend(topic.name for topic in plan if topic.missing)
            return created

        monkeypatch.setattr(administration, "plan_topics", plan_topics)
        monkeypatch.setattr(administration, "create_topics", create_topics)
        return created

    return with_partitions


def topics(action, *arguments):
    return main(["topics", action, SOURCE, "--set", "topic_prefix=p-", *arguments])


@pytest.mark.parametrize("action", ["plan", "create"])
@pytest.mark.parametrize("counts", [(4, 4), (4, None), (None, 4)])
@pytest.mark.parametrize("requested", ["8", "0", "64"])
def test_a_partition_count_other_than_the_existing_one_is_refused(
    broker, capsys, action, counts, requested
):
    created = broker(*counts)
    assert topics(action, "--partitions", requested) == 2
    out, err = capsys.readouterr()
    assert f"the inputs have 4 partitions, not {requested}; existing topics keep their count" in err
    assert (out, err.count("\n"), created) == ("", 1, [])


@pytest.mark.parametrize("arguments", [(), ("--partitions", "4")])
def test_the_existing_partition_count_may_be_given_or_omitted(broker, arguments):
    created = broker(4, None)
    assert topics("plan", *arguments) == 0
    assert created == []
    assert topics("create", *arguments) == 0
    assert created == ["p-judgments"]


def test_new_inputs_get_the_requested_partition_count(broker, capsys):
    broker(None, None)
    assert topics("plan", "--partitions", "8") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("p-rankings", "8", "delete", "missing", "bound=300000")
    ]
    assert topics("plan", "--partitions", "8", "--no-timestamp-bound") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "bound=None"


def test_schema_offers_no_settings(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["schema", "--help"])
    text = capsys.readouterr().out
    assert "--config" not in text
    assert "--set" not in text


def test_schema_prints_names_and_documents(capsys):
    assert main(["schema"]) == 0
    assert "ranking" in capsys.readouterr().out
    assert main(["schema", "nothing"]) == 2
    assert "The schema nothing does not exist" in capsys.readouterr().err


# Rights


def commands_for(*settings, principal=None, alarms=False):
    """The rights that `check` prints, without requests to a broker."""
    arguments = dict(line.split("=", 1) for line in settings)
    made = Settings(**arguments, alarms=alarms)
    connection = connection_of(SOURCE.removeprefix("--source="), made)
    return administration.rights_lines(connection, made, principal=principal)


def test_the_rights_are_commands_for_the_topics_and_the_group_of_the_settings():
    lines = commands_for("topic_prefix=p-", "group_id=a group")
    start = "kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal User:ANONYMOUS"
    inputs = "--topic p-rankings --topic p-judgments"
    outputs = "--topic p-evaluations --topic p-settled --topic p-windows"
    assert [line.removeprefix(start) for line in lines] == [
        "# The rights that `evaluator run` needs, and no others:",
        f" --operation Read {inputs} --topic p-checkpoints --group 'a group'",
        f" --operation Write {outputs} --topic p-dead-letters --topic p-checkpoints",
        "# for heartbeats; without it: heartbeats=off",
        f" --operation Write {inputs}",
        "# to watch the retention of the inputs; without it /metrics does not have it",
        f" --operation DescribeConfigs {inputs}",
    ]


def test_learning_also_needs_the_rights_of_the_leader():
    without = commands_for("topic_prefix=p-", "group_id=a group")
    lines = commands_for("topic_prefix=p-", "group_id=a group", "learning=propose")
    start = "kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal User:ANONYMOUS"
    topics = "--topic p-weights --topic p-weights-log --topic p-alarms --topic p-alarm-commands"
    transactional_id = "'p-a group-leader'"
    assert [line.removeprefix(start) for line in lines if line not in without] == [
        " --operation Read --topic p-settled --topic p-weights --group 'a group-leader'",
        f" --operation Write {topics} --transactional-id {transactional_id}",
    ]
    assert [line for line in lines if line in without] == without
    assert lines == commands_for("topic_prefix=p-", "group_id=a group", alarms=True)


async def nothing_found(connection, group):
    return []


@pytest.mark.parametrize(("mode", "n_warnings"), [(0o755, 1), (0o750, 1), (0o700, 0), (None, 0)])
def test_check_warns_of_a_state_directory_that_others_may_read(
    tmp_path, monkeypatch, capsys, mode, n_warnings
):
    async def inspect(connection, **requested):
        return [Finding("ok", "Broker b:1 answers.")]

    async def group_members(connection, group_id):
        return []

    monkeypatch.setattr(administration, "inspect", inspect)
    monkeypatch.setattr(administration, "group_members", group_members)
    monkeypatch.setattr(administration, "inspect_workers", nothing_found)
    place = tmp_path / "a state"
    if mode is not None:
        place.mkdir()
        place.chmod(mode)
    assert main(["check", SOURCE, "--set", f"state_dir={place}"]) == 0
    out = capsys.readouterr().out
    assert out.count("open to other users") == n_warnings
    assert out.count(f"chmod 700 '{place}'") == n_warnings


def test_check_without_a_broker_exits_with_3_despite_other_findings(tmp_path, monkeypatch, capsys):
    async def inspect(connection, **requested):
        return [Finding("error", "No broker answers.", "Start it.")]

    monkeypatch.setattr(administration, "inspect", inspect)
    tmp_path.chmod(0o755)
    assert main(["check", SOURCE, "--set", f"state_dir={tmp_path}"]) == 3
    assert "open to other users" in capsys.readouterr().out


@pytest.fixture
def group(monkeypatch):
    """A function that sets the names of the members of a group; everything else is valid."""
    names = []

    async def inspect(connection, **requested):
        return [Finding("ok", "Broker b:1 answers.")]

    async def group_members(connection, group_id):
        assert group_id == "a-group"
        return names

    monkeypatch.setattr(administration, "inspect", inspect)
    monkeypatch.setattr(administration, "group_members", group_members)
    monkeypatch.setattr(administration, "inspect_workers", nothing_found)
    return names.extend


def check(capsys, *settings):
    """Exit code and text of `check` for the group."""
    assignments = [part for each in ("group_id=a-group", *settings) for part in ("--set", each)]
    return main(["check", SOURCE, *assignments]), capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), ""),
        (("", ""), ""),
        (("pod-1", "pod-0"), ""),
        (("pod-1", "", "pod-0", ""), "2 members without a name beside 2 with one (pod-0, pod-1)"),
        (("a", "b", "c", "d", ""), "1 members without a name beside 4 with one (a, b, c)"),
    ],
)
def test_check_warns_of_members_with_and_without_names(group, capsys, tmp_path, names, found):
    group(names)
    code, out = check(capsys, f"state_dir={tmp_path / 'state'}")
    assert code == 0
    assert out.count("warning Group") == bool(found)
    assert found in out


@pytest.mark.parametrize(
    ("owner", "warns"),
    [
        (None, True),
        (f"process {os.getpid()} on {os.uname().nodename}\n", False),
        (f"process {os.getpid()} on elsewhere\n", True),
        (f"process 0 on {os.uname().nodename}\n", True),
        ("process", True),
    ],
    ids=["no process", "this process", "elsewhere", "ended", "cut"],  # equal in all test processes
)
def test_check_warns_of_a_name_that_another_process_uses(group, capsys, tmp_path, owner, warns):
    group(["pod-0"])
    if owner is not None:
        tmp_path.chmod(0o700)
        (tmp_path / "in-use").write_text(owner)
    state = f"state_dir={tmp_path}"
    code, out = check(capsys, state, "group_instance_id=pod-0")
    assert code == 0
    assert ("Group a-group has a member pod-0" in out) == warns
    assert ("evaluator group remove pod-0" in out) == warns
    assert "has a member" not in check(capsys, state, "group_instance_id=pod-1")[1]


def test_a_locked_state_directory_is_reported_as_in_use(tmp_path):
    states = RocksStateDirectory(tmp_path)
    states.hold()
    assert is_in_use(tmp_path)
    states.release()


def test_check_writes_and_deletes_in_the_folder_of_snapshots(group, capsys, tmp_path):
    folder = tmp_path / "snapshots"
    code, out = check(capsys, f"snapshot_url=file://{folder}")
    assert (code, list(folder.iterdir())) == (0, [])
    assert f"ok      snapshot_url file://{folder} can be written" in out


def test_check_names_what_is_missing_for_the_folder_of_snapshots(
    group, capsys, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    code, out = check(capsys, f"snapshot_url=file://{tmp_path / 'file' / 'folder'}")
    assert code == 5
    assert "cannot be used: it cannot be written: NotADirectoryError" in out
    assert "Grant List, Get, Put and Delete" in out
    monkeypatch.setitem(sys.modules, "s3fs", None)
    code, out = check(capsys, "snapshot_url=s3://bucket/folder")
    assert code == 5
    assert "pip install '.[snapshots]'" in out


def test_check_waits_for_the_folder_of_snapshots_for_a_limited_time(
    group, capsys, tmp_path, monkeypatch
):
    waiting = Event()
    monkeypatch.setattr(administration, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(SnapshotFolder, "probe", lambda self: waiting.wait())
    code, out = check(capsys, f"snapshot_url=file://{tmp_path}")
    waiting.set()
    assert code == 5
    assert "has not answered in 0 s" in out


LOGIN = ("security_protocol=SASL_SSL", "sasl_username=a b", "sasl_password_file=f")
TLS = ("security_protocol=SSL", "ssl_certfile=c", "ssl_keyfile=k")


@pytest.mark.parametrize(
    ("settings", "principal", "printed"),
    [
        (LOGIN, None, "--command-config admin.properties --add --allow-principal 'User:a b' "),
        (TLS, None, '--command-config admin.properties --add --allow-principal "$PRINCIPAL" '),
        (TLS, "User:CN=x", "--command-config admin.properties --add --allow-principal User:CN=x "),
        (LOGIN, "carol", "--command-config admin.properties --add --allow-principal User:carol "),
    ],
)
def test_rights_are_printed_for_the_login_or_the_given_principal(settings, principal, printed):
    lines = commands_for(*settings, principal=principal)
    granting = [line for line in lines if not line.startswith("#")]
    assert len(granting) == 4
    assert all(printed in line for line in granting)
    assert any("PRINCIPAL=" in line for line in lines) == ("$" in printed)


def test_without_heartbeats_no_write_right_on_the_inputs_is_requested():
    made = Settings(heartbeats=False)
    lines = administration.rights_lines(connection_of("kafka://b:1", made), made)
    assert not [line for line in lines if "Write" in line and "rankings" in line]


def rights_blocks():
    """The commands of the security page: those for every process, and those for a leader."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8").split("## Least rights")[1]
    (acls, always), (_, learning) = (
        block.split("```")[0].replace("\\\n", " ").split("\n", 1)
        for block in page.split("```sh\n")[1:3]
    )
    acls = acls.removeprefix('acls="').removesuffix('"')
    return [
        [
            words
            for line in block.splitlines()
            if (words := arguments_in(line.replace("$acls", acls)))
        ]
        for block in (always, learning)
    ]


def arguments_in(line):
    return shlex.split(line, comments=True)


def test_the_page_on_security_shows_what_is_printed():
    login = {"security_protocol": "SASL_SSL", "sasl_username": "evaluator"}
    always, learning = rights_blocks()
    for settings, shown in (({"alarms": False}, always), ({}, always + learning)):
        made = Settings(**login, sasl_password_file="f", **settings)
        lines = administration.rights_lines(connection_of("kafka://broker:9093", made), made)
        printed = [words for line in lines if (words := arguments_in(line))]
        assert sorted(printed) == sorted(shown)


def test_the_page_has_the_cleanup_policy_of_every_topic():
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    stated = {
        topic.strip(" `"): (policy.split("`")[1], "unlimited" in policy)
        for topics, policy in table_below(page, "## Topics")
        for topic in topics.split(",")
    }
    unlimited = {name for name, of in FURTHER_SETTINGS.items() if "retention.ms" in of}
    assert stated == {name: (policy, name in unlimited) for name, policy in CLEANUP.items()}
