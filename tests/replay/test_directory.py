"""Sorting in bounded memory, and files that appear together."""

import hashlib
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.ports import ResultsUnusable
from evaluator.replay.results import ResultDirectory, ResultFile, SortedRows

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
integers = st.integers(0, 2**63 - 1) | st.just(5) | st.integers(2**63, 2**8192)
keys = st.tuples(integers, texts, texts)
lines = st.binary(max_size=20).filter(lambda line: b"\n" not in line)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("sorting")


@pytest.mark.slow(alone=False)
@given(st.lists(st.lists(st.tuples(keys, lines), max_size=5), max_size=12), st.integers(0, 2_000))
def test_all_rows_are_returned_ordered_by_key_and_line(place, batches, size):
    rows = SortedRows(place / "rows", memory_bytes=size)
    for batch in batches:
        rows.add(batch)
    assert list(rows.drain()) == sorted(row for batch in batches for row in batch)
    assert list(place.iterdir()) == []


def test_strings_sort_by_code_point_as_their_utf_8_bytes_do(place):
    names = ["a", "Z", "é", "\uffff", "\U00010000", "", "a\0b", "a\0"]
    rows = SortedRows(place / "rows")
    for name in names:
        rows.add([((name,), b"")])
    found = [key for (key,), _ in rows.drain()]
    assert found == sorted(names, key=str.encode)


def test_rows_that_fit_into_memory_are_never_written(place):
    rows = SortedRows(place / "rows")
    rows.add([((n,), b"x" * 1_000) for n in range(1_000)])
    assert (place / "rows").stat().st_size == 0
    rows.close()
    assert list(place.iterdir()) == []


def test_more_rows_than_memory_are_written_and_need_no_temporary_table(place):
    rows = SortedRows(place / "rows", memory_bytes=100_000)
    rows.add([((n * 7 % 2_000, "a"), b"x" * 1_000) for n in range(2_000)])
    assert (place / "rows").stat().st_size > 1_000_000
    assert [key for (key, _), _ in rows.drain()] == list(range(2_000))


def test_files_appear_at_the_commit_and_not_before(tmp_path):
    with ResultDirectory(tmp_path / "out", force=False) as results:
        results.write("a", [b"1", b"2"])
        results.write("a", [b"3"])
        finished = results.finish("a")
        assert not (tmp_path / "out" / "a").exists()
        results.commit()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    content = (tmp_path / "out" / "a").read_bytes()
    assert content == b"1\n2\n3\n"
    assert finished == ResultFile(3, 6, hashlib.sha256(content).hexdigest())


def test_leaving_without_a_commit_keeps_existing_files(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("there", "made/with/parents"):
        with ResultDirectory(tmp_path / name, force=False) as results:
            results.write("a", [b"1"])
            results.finish("a")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_no_rows_give_no_sorted_rows(tmp_path):
    with ResultDirectory(tmp_path / "out", force=False) as results:
        results.sort("a", [])
        assert list(results.sorted_rows("a")) == []
        assert list(results.sorted_rows("b")) == []


def test_the_set_is_not_complete_while_it_is_being_replaced(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("data", "manifest"):
        (out / name).write_text("old")
    with ResultDirectory(out, force=True) as results:
        for name in ("data", "manifest"):
            results.write(name, [b"new"])
            results.finish(name)
        monkeypatch.setattr(type(out), "replace", raise_no_space)
        with pytest.raises(ResultsUnusable, match="no space"):
            results.commit()
    assert sorted(path.name for path in out.iterdir()) == ["data"]


def raise_no_space(self, target):
    raise OSError("no space")


@pytest.fixture
def small_disk():
    """No file of this process may grow beyond 100,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_too_much(directory, how):
    with ResultDirectory(directory, force=False, memory_bytes=1) as results:
        if how == "sort":
            results.sort("a", [((1,), b"x" * 150_000)])
        results.write("a", [b"x" * (150_000 if how == "write" else 99_990)])
        results.write("a", [b"these stay in the buffer"])
        results.finish("a")


@pytest.mark.parametrize("how", ["write", "sort", "finish"])
def test_a_full_disk_gives_one_sentence_and_leaves_no_files(tmp_path, small_disk, how):
    with pytest.raises(
        ResultsUnusable, match=r"out: (File too large|disk I/O error|.* full)\. Make room"
    ):
        write_too_much(tmp_path / "out", how)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_replay_has_left_is_removed_and_a_running_one_is_not(tmp_path):
    (tmp_path / "out" / ".evaluator-replay-killed").mkdir(parents=True)
    with ResultDirectory(tmp_path / "out", force=False):
        (running,) = (tmp_path / "out").iterdir()
        assert running.name != ".evaluator-replay-killed"
        with (
            pytest.raises(ResultsUnusable, match="not empty"),
            ResultDirectory(tmp_path / "out", force=False),
        ):
            pass
        assert running.exists()
