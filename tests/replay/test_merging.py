"""A merge of shards: the bytes of one replay of all tasks, for any grouping of the shards."""

import json
import shutil
from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.cli import main
from evaluator.core.types.segments import MAX_LEVELS
from evaluator.replay.manifest import Code, chain_of
from evaluator.replay.merging import Merge
from tests.repeats import examples, first_quick, sized
from tests.replay.running import contents, judgment, put, ranking
from tests.replay.test_alarms import DROP_HOUR, HOUR_MS, HOURS, START_MS, TICK_MS, write_world
from tests.replay.test_alarms import replayed as with_alarms

N_TASKS = 4
N_QUERIES = sized(20, quick=12)
SETTINGS = (
    "retention_ms=20000",
    "maturity_ms=5000",
    "window_ms=7000",
    "out_of_orderness_ms=100",
    "measures=ndcg,mrr,ndcg@10,top1,hit@1",
    "segments=locale",
)


def write_logs(directory):
    """Partitions of different length and speed, with late, conflicting and damaged messages."""
    for task in range(N_TASKS):
        rankings, judgments = [], []
        for n in range(N_QUERIES + 7 * task):
            trace, time_ms = f"t-{task}-{n}é", 1_000 * n * (task + 1)
            labels = {"model": f"m{n % 2}", "segments": {"locale": f"l{n % 5}"}}
            rankings.append(ranking(trace, time_ms, scorers={"bm25": [1, 2]}, **labels))
            if n % 3:
                judgments.append(judgment(trace, time_ms + n, {"ab"[n % 2]: 1 + n % 3}))
        rankings += [b"{", ranking("t-0-0é", 10**7 * task + 1, ids=("b", "a"))]
        judgments += [b"", judgment(f"t-{task}-1é", 10**6), judgment("unknown", 10**6)]
        put(directory, f"rankings-{task}.ndjson", rankings)
        put(directory, f"judgments-{task}.ndjson", judgments)
    return directory


def replay(source, out, *more, settings=SETTINGS):
    chosen = [each for setting in settings for each in ("--set", setting)]
    assert main(["replay", "--source", f"file://{source}", "--out", str(out), *chosen, *more]) == 0
    return out


def merge(out, *directories, force=False):
    more = ["--force"] if force else []
    return main(["merge", *map(str, directories), "--out", str(out), *more])


@pytest.fixture(scope="module", params=first_quick("settle", "hold"))
def shards(request, tmp_path_factory):
    """One replay of all tasks, and one of each."""
    root = tmp_path_factory.mktemp(request.param)
    logs = write_logs(root / "logs")
    at_end = ("--at-end", request.param)
    replay(logs, root / "whole", *at_end)
    for task in range(N_TASKS):
        replay(logs, root / str(task), *at_end, "--tasks", str(task))
    return root


@given(data=st.data())
@hypothesis.settings(max_examples=examples(10), deadline=None)
def test_a_merge_in_any_grouping_and_order_has_the_bytes_of_one_replay(
    shards, tmp_path_factory, data
):
    root = tmp_path_factory.mktemp("groups")
    left = [shards / str(task) for task in range(N_TASKS)]
    number = 0
    while len(left) > 1:
        left = data.draw(st.permutations(left))
        n = data.draw(st.integers(2, len(left)))
        assert merge(root / str(number), *left[:n]) == 0
        left = [*left[n:], root / str(number)]
        number += 1
    assert contents(left[0]) == contents(shards / "whole")
    shutil.rmtree(root)


def test_a_merge_of_one_and_of_equal_directories_changes_nothing(shards, tmp_path):
    shutil.copytree(shards / "whole", tmp_path / "copy")
    assert merge(tmp_path / "out", shards / "whole", tmp_path / "copy") == 0
    assert contents(tmp_path / "out") == contents(shards / "whole")


def test_tasks_are_given_as_numbers_and_ranges(shards, tmp_path):
    logs, at_end = shards / "logs", json.loads((shards / "0/manifest.json").read_text())
    more = ("--at-end", at_end["settings"]["at_end"])
    replay(logs, tmp_path / "a", *more, "--tasks", "3,0-1")
    replay(logs, tmp_path / "b", *more, "--tasks", "2")
    tasks = json.loads((tmp_path / "a" / "manifest.json").read_text())["tasks"]
    assert list(tasks) == ["0", "1", "3"]
    assert merge(tmp_path / "out", tmp_path / "a", tmp_path / "b") == 0
    assert contents(tmp_path / "out") == contents(shards / "whole")


@pytest.mark.parametrize("tasks", ["", "a", "2-1", "-1", "1,", "10000", "0 "])
def test_an_invalid_list_of_tasks_is_refused(tmp_path, capsys, tasks):
    arguments = ["--source", "file://nowhere", "--out", str(tmp_path), f"--tasks={tasks}"]
    assert main(["replay", *arguments]) == 2
    assert "is not a list of tasks, e.g. 0-15" in capsys.readouterr().err


def test_a_task_that_the_logs_do_not_have_is_refused(shards, tmp_path, capsys):
    source = f"file://{shards / 'logs'}"
    assert main(["replay", "--source", source, "--out", str(tmp_path), "--tasks", "3-4"]) == 3
    assert "names task 4, and the logs have 4 partitions" in capsys.readouterr().err


# --- levels, alarms, weights -------------------------------------------------------------------


@pytest.mark.slow(alone=False)
def test_levels_without_a_value_in_any_shard_count_for_the_kept_levels(tmp_path):
    """A level that one task alone keeps, and all tasks together do not."""
    for task in range(2):
        rankings, judgments = [], []
        for n in range(MAX_LEVELS + 1 - task):  # only the first task has one level too many
            trace = f"t-{task}-{n}"
            rankings.append(ranking(trace, 1_000, segments={"locale": f"l{n + task}"}))
            if n % 2 == task:
                judgments.append(judgment(trace, 1_000))
        put(tmp_path / "logs", f"rankings-{task}.ndjson", rankings)
        put(tmp_path / "logs", f"judgments-{task}.ndjson", judgments)
    settings = ("segments=locale", "measures=mrr")
    replay(tmp_path / "logs", tmp_path / "whole", settings=settings)
    for task in "01":
        replay(tmp_path / "logs", tmp_path / task, "--tasks", task, settings=settings)
    assert merge(tmp_path / "out", tmp_path / "1", tmp_path / "0") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_alarms_equal_those_of_one_watch_with_the_commands_of_all_shards(tmp_path):
    write_world(tmp_path / "logs", 3)
    command = {
        "format": 1,
        "id": "holiday",
        "action": "exclude",
        "series": {"model": "gamma"},
        "from_ms": START_MS + (DROP_HOUR - 2) * HOUR_MS,
        "to_ms": START_MS + (DROP_HOUR + 6) * HOUR_MS,
        "applied_ms": START_MS + (DROP_HOUR + 4) * HOUR_MS + TICK_MS,
    }
    later = {**command, "id": "never", "applied_ms": START_MS + 2 * HOURS * HOUR_MS}
    # Before the history, so each shard executes it at its own first tick, and these differ.
    before = {**command, "id": "before", "applied_ms": START_MS - HOUR_MS}
    before |= {"from_ms": START_MS + 20 * HOUR_MS, "to_ms": START_MS + 22 * HOUR_MS}
    text = "".join(json.dumps(of) + "\n" for of in (before, command, later))
    (tmp_path / "logs" / "alarm-commands.ndjson").write_text(text)
    events = with_alarms(tmp_path / "logs", tmp_path / "whole")
    assert {"on", "exclude"} <= {event["event"] for event in events}
    for task in "012":
        with_alarms(tmp_path / "logs", tmp_path / task, "--tasks", task)
    executed = {(tmp_path / task / "alarm-commands.ndjson").read_bytes() for task in "012"}
    assert len(executed) > 1
    assert merge(tmp_path / "some", tmp_path / "2", tmp_path / "0") == 0
    assert merge(tmp_path / "out", tmp_path / "1", tmp_path / "some") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert merge(tmp_path / "other", *(tmp_path / task for task in "012")) == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "whole")


def test_commands_of_all_directories_are_in_the_order_of_their_ticks():
    command = {"format": 1, "action": "acknowledge", "series": {"model": "gamma"}}
    lines = [json.dumps({**command, "id": f"at {ms}", "applied_ms": ms}).encode() for ms in (9, 3)]
    shards = tuple(SimpleNamespace(lines=lambda _, line=line: [line]) for line in lines)
    commands = Merge(shards, {}, "", Code(None, None)).commands()
    assert [command.id for command in commands] == ["at 3", "at 9"]


@pytest.mark.slow(alone=False)
def test_weights_are_left_out_and_a_warning_names_the_reason(tmp_path, capsys):
    logs = write_logs(tmp_path / "logs")
    settings = (*SETTINGS, "learning=propose")
    replay(logs, tmp_path / "whole", settings=settings)
    for tasks in ("0-1", "2-3"):
        replay(logs, tmp_path / tasks, "--tasks", tasks, settings=settings)
        assert "so there is no weights.ndjson" in capsys.readouterr().err
    assert merge(tmp_path / "out", tmp_path / "0-1", tmp_path / "2-3") == 0
    assert "weights cannot be merged" in capsys.readouterr().err
    whole, merged = contents(tmp_path / "whole"), contents(tmp_path / "out")
    assert whole.keys() - merged.keys() == {"weights.ndjson"}
    assert {name for name in merged if merged[name] != whole[name]} == {"manifest.json"}


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "evaluations.ndjson",
        "totals.json",
        "settled.ndjson",
        "windows.ndjson",
        "dead-letters.ndjson",
    ],
)
@pytest.mark.parametrize("damage", first_quick("changed", "cut", "longer", "missing"))
def test_a_file_that_is_not_the_one_of_the_manifest_is_refused(
    shards, tmp_path, capsys, name, damage
):
    shutil.copytree(shards / "1", tmp_path / "1")
    path = tmp_path / "1" / name
    text = path.read_bytes()
    changed = {
        "changed": text.replace(b"0", b"1", 1),
        "cut": text[:-20],
        "longer": text + text.splitlines(keepends=True)[-1],
    }
    path.unlink()
    if damage != "missing":
        path.write_bytes(changed[damage])
    assert merge(tmp_path / "out", shards / "0", tmp_path / "1") == 3
    assert str(path) in (error := capsys.readouterr().err)
    assert "Replay it again" in error
    assert not (tmp_path / "out").exists()


def altered(shards, directory, **members):
    """A copy of a shard with another manifest, whose chain is right."""
    shutil.copytree(shards / "1", directory)
    document = {**json.loads((directory / "manifest.json").read_text()), **members}
    names = list(document)
    origin = {name: document[name] for name in names[: names.index("counts")]}
    document["chain"] = chain_of(origin, document["files"])
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 2}', b"[" * 10**6])
def test_a_directory_without_a_manifest_of_results_is_refused(shards, tmp_path, capsys, text):
    (tmp_path / "manifest.json").write_bytes(text)
    assert merge(tmp_path / "out", shards / "0", tmp_path) == 3
    assert "is not a manifest of results" in capsys.readouterr().err
    assert merge(tmp_path / "out", shards / "0", tmp_path / "nowhere") == 3
    assert "nowhere/manifest.json cannot be read" in capsys.readouterr().err


def test_a_manifest_that_was_changed_or_is_of_another_format_is_refused(shards, tmp_path, capsys):
    shutil.copytree(shards / "1", tmp_path / "1")
    path = tmp_path / "1" / "manifest.json"
    path.write_text(path.read_text().replace('"end": 2', '"end": 3', 1))
    assert merge(tmp_path / "out", shards / "0", tmp_path / "1") == 3
    assert "its chain differs" in capsys.readouterr().err
    for name, members in (("a", {"format": 1}), ("b", {"tasks": {}})):
        assert merge(tmp_path / "out", altered(shards, tmp_path / name, **members)) == 3
        assert "Replay it again with this version" in capsys.readouterr().err


def test_another_meaning_is_refused_and_the_settings_are_named(shards, tmp_path, capsys):
    logs = shards / "logs"
    for name, settings, expected in (
        ("retention", (*SETTINGS, "retention_ms=30000"), "different meanings: retention_ms."),
        ("query", (*SETTINGS, "emit_query=off"), "different meanings: emit_query."),
        ("alarms", (*SETTINGS, "alarms=off"), "different meanings: alarms."),
    ):
        at_end = json.loads((shards / "0/manifest.json").read_text())["settings"]["at_end"]
        more = ("--at-end", at_end, "--tasks", "1")
        replay(logs, tmp_path / name, *more, settings=settings)
        assert merge(tmp_path / "out", shards / "0", tmp_path / name) == 2
        assert expected in capsys.readouterr().err
    other = altered(shards, tmp_path / "other", meaning="0" * 16)
    assert merge(tmp_path / "out", shards / "0", other) == 2
    assert "the version of the rules" in capsys.readouterr().err


def test_skipped_offsets_are_in_the_order_of_a_replay_of_all_tasks(shards, tmp_path):
    settings = json.loads((shards / "1/manifest.json").read_text())["settings"]
    skips = {f"{log}-{task}": [[0, 1]] for log in ("judgments", "rankings") for task in (2, 10)}
    parts = [
        altered(shards, tmp_path / str(n), settings={**settings, "skips": of}, place=place(n))
        for n, of in enumerate([{name: skips[name]} for name in reversed(skips)])
    ]
    assert merge(tmp_path / "out", *parts) == 0
    merged = json.loads((tmp_path / "out/manifest.json").read_text())["settings"]["skips"]
    assert list(merged.items()) == list(skips.items())


def test_a_repeated_task_is_refused_unless_equal(shards, tmp_path, capsys):
    assert merge(tmp_path / "out", shards / "0", shards / "whole") == 2
    error = capsys.readouterr().err
    assert f"{shards / '0'} and {shards / 'whole'} both have task 0 of files, and are not" in error


def test_an_input_is_not_replaced(shards, tmp_path, capsys):
    shutil.copytree(shards / "0", tmp_path / "0")
    assert merge(tmp_path / "0", shards / "1", tmp_path / "0", force=True) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert contents(tmp_path / "0") == contents(shards / "0")


# --- several places ----------------------------------------------------------------------------


def place(number, partitions=2):
    ids = {"rankings": f"r{number}", "judgments": f"j{number}"}
    return {"cluster": "c", "topic_ids": ids, "partitions": partitions}


def test_tasks_of_other_topics_are_summed_and_listed_separately(shards, tmp_path, capsys):
    before, after, both = (
        altered(shards, tmp_path / name, place=place(number))
        for name, number in (("before", 1), ("after", 2), ("third", 3))
    )
    assert merge(tmp_path / "two", after, before) == 0
    assert capsys.readouterr().err.count("tasks 0 are missing") == 2
    once, twice = (
        json.loads((directory / "totals.json").read_text())
        for directory in (shards / "1", tmp_path / "two")
    )
    for row, of in zip(once["totals"], twice["totals"], strict=True):
        assert of["sum_units"] == 2 * row["sum_units"]
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert [part["place"] for part in manifest["parts"]] == [place(1), place(2)]
    assert manifest["place"] is None
    assert merge(tmp_path / "left", tmp_path / "two", both) == 0
    assert merge(tmp_path / "some", both, after) == 0
    assert merge(tmp_path / "right", tmp_path / "some", before) == 0
    assert contents(tmp_path / "left") == contents(tmp_path / "right")
    assert (
        merge(
            tmp_path / "out",
            tmp_path / "two",
            altered(shards, tmp_path / "again", place=place(1), version="9"),
        )
        == 2
    )
    assert "both have task 1 of the same topics, and are not byte-equal" in capsys.readouterr().err


def test_the_code_of_different_versions_is_not_named(shards, tmp_path):
    other = altered(shards, tmp_path / "other", version="0.0.9", place=place(1))
    assert merge(tmp_path / "out", shards / "0", other) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["version"], manifest["code_sha256"]) == (None, None)
    assert main(["compare", "--source", str(tmp_path / "out"), "--ranker", "bm25"]) == 0
