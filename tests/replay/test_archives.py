"""Archives of topics: the results equal those of the original logs."""

import gzip
import json
import subprocess
import sys

import cramjam
import fsspec
import pytest

from evaluator.adapters.files import ArchiveRange, archives
from evaluator.cli import main
from evaluator.ports import UNKNOWN_END, SourceUnusable
from tests.repeats import first_quick
from tests.replay.running import contents, ranking
from tests.replay.test_merging import SETTINGS, write_logs
from tests.s3 import s3_server

PACK = {
    ".json": bytes,
    ".json.gz": lambda text: gzip.compress(text, mtime=0),
    ".ndjson.zst": lambda text: bytes(cramjam.zstd.compress(text)),
}


def run(source, out, *more):
    chosen = [each for setting in SETTINGS for each in ("--set", setting)]
    return main(["replay", "--source", source, "--out", str(out), *chosen, *more])


def objects_of(logs, *, size=7, suffix=".json.gz", repeated=0):
    """The lines of logs as objects of a connector, each with some lines of the next one."""
    for path in sorted(logs.iterdir()):
        topic, _, partition = path.stem.partition("-")
        lines = path.read_bytes().splitlines(keepends=True)
        for first in range(0, len(lines), size):
            text = b"".join(lines[first : first + size + repeated])
            folder = f"topics/{topic}/partition={partition}/hour={first % 3}"
            yield f"{folder}/{topic}+{partition}+{first:010d}{suffix}", PACK[suffix](text)


def put(root, objects):
    for name, text in objects:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    return f"archive://{root}"


def write_expected(root):
    """Logs, and the results of a replay of them."""
    write_logs(root / "logs")
    assert run(f"file://{root / 'logs'}", root / "expected") == 0
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_expected(tmp_path_factory.mktemp("archived"))


@pytest.mark.parametrize("suffix", first_quick(*reversed(PACK)))
@pytest.mark.parametrize("repeated", first_quick(3, 0, 20))
def test_archived_objects_give_the_results_of_their_logs(root, tmp_path, suffix, repeated):
    objects = objects_of(root / "logs", suffix=suffix, repeated=repeated)
    assert run(put(tmp_path / "in", objects), tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(root / "expected")


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize("form", ["dt=2026-10-{:02}", "year=2026/month=10/day={}"])
def test_folders_by_day_are_read_in_the_order_of_their_names(root, tmp_path, form):
    for path in (root / "logs").iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        for day in range(3):
            part = lines[len(lines) * day // 3 : len(lines) * (day + 1) // 3]
            name = f"{form.format(day + 8)}/{path.name}.gz"
            put(tmp_path / "in", [(name, gzip.compress(b"".join(part)))])
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(root / "expected")


def test_one_part_of_a_log_in_two_encodings_is_refused(root, tmp_path, capsys):
    text = (root / "logs" / "rankings-0.ndjson").read_bytes()
    objects = {"d/rankings-0.ndjson": text, "d/rankings-0.ndjson.gz": gzip.compress(text)}
    assert run(put(tmp_path / "in", objects.items()), tmp_path / "out") == 2
    assert "are the same part of rankings, partition 0" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_and_processes_and_verify_read_archives(root, tmp_path):
    source = put(tmp_path / "in", objects_of(root / "logs", repeated=1))
    assert run(source, tmp_path / "two", "--processes", "2") == 0
    assert contents(tmp_path / "two") == contents(root / "expected")
    assert main(["verify", str(root / "expected"), "--source", source]) == 0


# --- gaps and repeats --------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
def test_missing_offsets_are_in_the_manifest_of_a_replay_and_of_a_merge(root, tmp_path):
    source = put(tmp_path / "in", objects_of(root / "logs"))
    for task, first in ((1, 7), (1, 14), (2, 7)):
        (path,) = (tmp_path / "in").rglob(f"rankings+{task}+{first:010d}.json.gz")
        path.unlink()
    assert run(source, tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["gaps"] == {"rankings-1": [[7, 21]], "rankings-2": [[7, 14]]}
    assert manifest["ranges"]["rankings-1"]["start"] == 0
    read = json.loads((tmp_path / "out" / "totals.json").read_text())["ledger"]["rankings"]["read"]
    whole = json.loads((root / "expected" / "totals.json").read_text())
    assert read == whole["ledger"]["rankings"]["read"] - 21
    for tasks in ("0-1", "2-3"):
        assert run(source, tmp_path / tasks, "--tasks", tasks) == 0
    shards = [str(tmp_path / tasks) for tasks in ("2-3", "0-1")]
    assert main(["merge", *shards, "--out", str(tmp_path / "merged")]) == 0
    assert contents(tmp_path / "merged") == contents(tmp_path / "out")


@pytest.mark.slow(alone=False)
def test_a_gap_before_the_end_of_a_range_is_verified(tmp_path):
    lines = [ranking(f"t{n}", 10**12 + n) + b"\n" for n in range(9)]
    objects = {first: b"".join(lines[first : first + 3]) for first in (0, 6)}
    source = put(
        tmp_path / "in",
        ((f"rankings+0+{first:010d}.json", text) for first, text in objects.items()),
    )
    assert run(source, tmp_path / "out", "--to", str(10**12 + 6)) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["ranges"]["rankings-0"] == {"start": 0, "end": 6}
    assert manifest["gaps"] == {"rankings-0": [[3, 6]]}
    assert main(["verify", str(tmp_path / "out"), "--source", source]) == 0


def test_with_strict_missing_offsets_are_refused(root, tmp_path, capsys):
    source = put(tmp_path / "in", objects_of(root / "logs"))
    assert run(source, tmp_path / "whole", "--strict") == 0
    next((tmp_path / "in").rglob("judgments+3+0000000007.json.gz")).unlink()
    assert run(source, tmp_path / "out", "--strict") == 3
    assert "judgments, partition 3: the offsets 7 to 13 are missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_archive_may_begin_later_than_its_topic(root, tmp_path):
    source = put(tmp_path / "in", objects_of(root / "logs"))
    for path in (tmp_path / "in").rglob("*+0000000000.json.gz"):
        path.unlink()
    assert run(source, tmp_path / "out", "--strict") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert "gaps" not in manifest
    assert {of["start"] for of in manifest["ranges"].values()} == {7}
    first = json.loads((tmp_path / "out" / "settled.ndjson").read_bytes().splitlines()[0])
    assert first["offset"] == 7


def test_records_that_differ_under_one_offset_are_refused(root, tmp_path, capsys):
    source = put(tmp_path / "in", objects_of(root / "logs", repeated=2))
    path = next((tmp_path / "in").rglob("rankings+1+0000000007.json.gz"))
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    lines[1] = lines[1].replace(b"t-1", b"t-9")
    path.write_bytes(gzip.compress(b"".join(lines)))
    assert run(source, tmp_path / "out") == 3
    error = capsys.readouterr().err
    assert "has other records than earlier objects between the offsets 7 and 8" in error
    assert str(path) in error


async def test_the_gaps_of_a_partition_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_GAPS", 2)
    put(tmp_path, [(f"rankings+0+{first}.json", b"x\n") for first in (0, 2, 4, 6, 8)])
    source = ArchiveRange(str(tmp_path))
    await source.open()
    async for _ in source.read("rankings", 0, 0, UNKNOWN_END, max_records=10):
        pass
    assert source.gaps == {"rankings-0": [(1, 2), (3, 8)]}


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 8), (5, 6), (9, 12)])
@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_part_of_a_log_keeps_its_offsets(tmp_path, start, end, size):
    put(tmp_path, [("rankings+0+0.json", b"0\n1\n2\n3\n"), ("rankings+0+2.json", b"2\n3\n4\n5\n")])
    put(tmp_path, [("rankings+0+6.json", b"6\n7\n8\n9\n")])
    source = ArchiveRange(str(tmp_path))
    assert await source.open() == 1
    reading = source.read("rankings", 0, start, end, max_records=size)
    found = [records async for records in reading]
    pairs = [(o, int(v)) for of in found for o, v in zip(of.offsets, of.values, strict=True)]
    assert pairs == [(n, n) for n in range(start, min(end, 10))]
    assert max(map(len, found)) <= size
    assert source.bytes_read <= source.size_bytes([("rankings", 0)])


# --- refusals ----------------------------------------------------------------------------------


def test_an_archive_that_cannot_be_read_is_refused(root, tmp_path, capsys):
    log = ("rankings-0.ndjson", b"")
    for objects, code, expected in (
        ([], 3, "has no object of rankings or judgments"),
        ([log, ("rankings+0+0.json", b"")], 2, "with offsets in their names and others without"),
        ([("rankings+10000+0.json", b"")], 3, "partitions are numbered from 0 to 9999"),
        ([("rankings+0+0.json.gz", b"\x1f\x8b")], 3, "rankings+0+0.json.gz is damaged"),
    ):
        folder = tmp_path / f"in-{expected[:12]}"
        folder.mkdir()
        assert run(put(folder, objects), tmp_path / "out") == code
        assert expected in capsys.readouterr().err
    assert run("s3://bucket/topics", tmp_path / "out") == 2
    assert "HOST:PORT], file://DIR or archive://URL" in capsys.readouterr().err
    assert run("archive://nothing://x", tmp_path / "out") == 3
    assert "archive" not in (error := capsys.readouterr().err)
    assert "nothing://x cannot be used: ValueError: Protocol not known" in error


# --- stores ------------------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
def test_any_file_system_of_fsspec_is_read(root, tmp_path):
    files = fsspec.filesystem("memory")
    for name, text in objects_of(root / "logs"):
        files.pipe_file(f"/bucket/{name}", text)
    assert run("archive://memory://bucket/topics", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(root / "expected")


def reads_a_store(root, path, scheme, environment):
    """The bucket `archive` has the logs of *root*, and there is no bucket `nowhere`.

    The command runs in its own process: these libraries close their sessions with the interpreter.
    """

    def replayed(url, out):
        chosen = [each for setting in SETTINGS for each in ("--set", setting)]
        command = ["replay", "--source", f"archive://{url}", "--out", str(out), *chosen]
        return subprocess.run(
            [sys.executable, "-m", "evaluator", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = replayed(f"{scheme}://archive/topics", path / "out")
    assert done.returncode == 0, done.stderr
    assert contents(path / "out") == contents(root / "expected")
    done = replayed(f"{scheme}://nowhere", path / "none")
    assert done.returncode == 3, done.stderr
    assert f"{scheme}://nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("s3")  # its server is imported once
def test_a_server_of_s3_is_read(root, tmp_path):
    with s3_server("archive", dict(objects_of(root / "logs", repeated=1))) as environment:
        reads_a_store(root, tmp_path, "s3", environment)


async def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(SourceUnusable, match=r"pip install '\.\[archives\]'"):
        await ArchiveRange(str(tmp_path)).open()
