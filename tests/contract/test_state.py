"""The contract of every state store, in memory and on a disk."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.ports import StateDirectory, StateInUse, StateStore, StateUnusable
from evaluator.wire.state.task_rows import TABLES, Row, Table
from tests.repeats import examples

MakeDirectory = Callable[[], StateDirectory]


@pytest.fixture(params=["memory", "rocksdb"])
def make_directory(request, tmp_path) -> MakeDirectory:
    """Opens the state directory as a process does; twice is two processes."""
    if request.param == "rocksdb":
        return lambda: RocksStateDirectory(tmp_path / "state")
    only = MemoryStateDirectory()
    return lambda: only


@pytest.fixture
def directory(make_directory) -> Iterator[StateDirectory]:
    directory = make_directory()
    directory.hold()
    yield directory
    directory.release()


@pytest.fixture
def store(directory) -> Iterator[StateStore]:
    store = directory.open(0)
    yield store
    store.close()


def put(store: StateStore, table: Table, *rows: Row) -> None:
    batch = store.batch()
    batch.put(table, rows)
    batch.write()


def all_rows(store: StateStore) -> dict[Table, list[tuple[bytes, bytes]]]:
    return {table: list(store.rows(table)) for table in TABLES}


# Reading


def test_a_new_store_is_empty(store):
    assert store.get("names", [b"a", b""]) == [None, None]
    assert list(store.rows("names", b"a", b"b")) == []
    assert all_rows(store) == {table: [] for table in TABLES}


def test_values_are_in_the_order_of_the_requested_keys(store):
    put(store, "names", (b"a", b"1"), (b"b", b"2"))
    assert store.get("names", [b"b", b"c", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    assert store.get("names", []) == []


def test_an_empty_value_is_a_value(store):
    put(store, "queries", (b"a", b""))
    assert store.get("queries", [b"a"]) == [b""]
    assert list(store.rows("queries")) == [(b"a", b"")]


def test_rows_are_in_the_order_of_their_bytes(store):
    keys = [b"\x00", b"\x00\x00", b"\x00\xff", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
    put(store, "queries", *((key, b"v" + key) for key in reversed(keys)))
    assert list(store.rows("queries")) == [(key, b"v" + key) for key in keys]


def test_tables_do_not_share_rows(store):
    for table in TABLES:
        put(store, table, (b"key", table.encode()))
    assert [store.get(table, [b"key"]) for table in TABLES] == [[t.encode()] for t in TABLES]


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        (b"a", b"b", [b"a", b"a1", b"a2"]),
        (b"a1", b"a1\x00", [b"a1"]),
        (b"a\x00", b"a2", [b"a1"]),
        (b"", b"a1", [b"a"]),
        (b"b", None, [b"b", b"b\xff", b"b\xff\xff", b"c", b"\xff\xff"]),
        (b"\xff\xff", None, [b"\xff\xff"]),
        (b"\xff\xff\x00", None, []),
        (b"a3", b"b", []),
        (b"b", b"b", []),
        (b"c", b"b", []),
    ],
)
def test_a_range_of_rows_includes_its_first_key_and_not_its_end(store, first, end, found):
    keys = [b"a", b"a1", b"a2", b"b", b"b\xff", b"b\xff\xff", b"c", b"\xff\xff"]
    put(store, "queries", *((key, b"v" + key) for key in keys))
    assert list(store.rows("queries", first, end)) == [(key, b"v" + key) for key in found]


def test_many_keys_are_found_like_few(store):
    rows = [(b"%05d" % number, b"%d" % number) for number in range(200)]
    put(store, "queries", *rows)
    keys = [key for key, _ in rows] + [b"none"]
    assert store.get("queries", keys) == [value for _, value in rows] + [None]
    assert store.get("names", keys) == [None] * 201


# Writing


def test_changes_are_invisible_before_the_batch_is_written(store):
    batch = store.batch()
    batch.put("names", [(b"a", b"1")])
    assert store.get("names", [b"a"]) == [None]
    batch.write()
    assert store.get("names", [b"a"]) == [b"1"]


def test_changes_of_a_batch_apply_in_their_order(store):
    batch = store.batch()
    batch.put("names", [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"1")])
    batch.put("names", [(b"a", b"2"), (b"b", None)])
    batch.delete_range("names", b"c", b"e")
    batch.put("names", [(b"b", b"3"), (b"d", b"3")])
    batch.write()
    assert list(store.rows("names")) == [(b"a", b"2"), (b"b", b"3"), (b"d", b"3")]


def test_a_deleted_range_includes_its_first_key_and_not_its_end(store):
    put(store, "runs", *((key, b"") for key in (b"a", b"b", b"b\x00", b"c", b"c\x00")))
    batch = store.batch()
    batch.delete_range("runs", b"b", b"c")
    batch.delete_range("runs", b"x", b"x")
    batch.write()
    assert [key for key, _ in store.rows("runs")] == [b"a", b"c", b"c\x00"]


def test_deleting_missing_rows_does_nothing(store):
    put(store, "names", (b"a", None))
    assert list(store.rows("names")) == []


def test_a_batch_is_written_to_all_of_its_tables_or_to_none(directory):
    store = directory.open(0)
    batch = store.batch()
    for table in TABLES:
        batch.put(table, [(b"a", b"1")])
    store.close()
    with pytest.raises(StateUnusable):
        batch.write()
    store = directory.open(0)
    assert all_rows(store) == {table: [] for table in TABLES}
    store.close()


def test_large_values_and_many_rows(directory):
    store = directory.open(0)
    large = bytes(range(256)) * 4096
    rows = [(number.to_bytes(8, "big"), b"%d" % number) for number in range(20_000)]
    put(store, "queries", *rows)
    for table in ("entries", "judgments"):
        put(store, table, (b"empty", b""), (b"large", large))
    assert list(store.rows("queries")) == rows
    assert list(store.rows("queries", rows[256][0], rows[512][0])) == rows[256:512]
    for table in ("entries", "judgments"):
        assert store.get(table, [b"empty", b"large"]) == [b"", large]
    assert store.n_bytes() > 0
    store.close()


def test_discard_before_deletes_only_earlier_rows_of_the_table(store):
    rows = [(b"a", b"1"), (b"b", b"2"), (b"b\x00", b"3")]
    put(store, "queries", *rows)
    put(store, "names", *rows)
    store.discard_before("queries", b"b")
    assert list(store.rows("queries", b"b")) == rows[1:]
    assert list(store.rows("names")) == rows
    put(store, "queries", (b"c", b"4"))
    store.discard_before("queries", b"b")
    assert list(store.rows("queries", b"b")) == [*rows[1:], (b"c", b"4")]


# Opening and closing


def test_written_rows_persist(directory):
    store = directory.open(3)
    put(store, "meta", (b"head", b"1"))
    store.close()
    again = directory.open(3)
    assert list(again.rows("meta")) == [(b"head", b"1")]
    put(again, "meta", (b"head", b"2"))
    again.close()
    third = directory.open(3)
    assert third.get("meta", [b"head"]) == [b"2"]
    third.close()


def test_another_process_reads_written_rows(make_directory):
    first = make_directory()
    first.hold()
    store = first.open(0)
    put(store, "meta", (b"head", b"1"))
    store.close()
    first.release()
    second = make_directory()
    second.hold()
    store = second.open(0)
    assert store.get("meta", [b"head"]) == [b"1"]
    store.close()
    second.release()


def test_each_task_has_a_store_of_its_own(directory):
    stores = [directory.open(task) for task in (0, 1, 10)]
    for number, store in enumerate(stores):
        put(store, "meta", (b"head", b"%d" % number))
    assert [store.get("meta", [b"head"]) for store in stores] == [[b"0"], [b"1"], [b"2"]]
    for store in stores:
        store.close()


def test_closing_twice_is_allowed(directory):
    store = directory.open(0)
    store.close()
    store.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get("meta", [b"a"]),
        lambda store: store.discard_before("meta", b"a"),
        lambda store: list(store.rows("meta")),
        lambda store: store.batch(),
    ],
)
def test_calls_of_a_closed_store_raise(directory, use):
    store = directory.open(0)
    store.close()
    with pytest.raises(StateUnusable, match="was closed"):
        use(store)


def test_an_unwritten_batch_does_not_keep_the_store_open(directory):
    store = directory.open(0)
    batch = store.batch()
    batch.put("meta", [(b"head", b"1")])
    store.close()
    again = directory.open(0)
    assert again.get("meta", [b"head"]) == [None]
    again.close()


# The directory


def test_a_directory_is_held_by_one_process(make_directory):
    first, second = make_directory(), make_directory()
    first.hold()
    with pytest.raises(StateInUse, match="in use"):
        second.hold()
    first.release()
    second.hold()
    second.release()


def test_releasing_twice_is_allowed(make_directory):
    directory = make_directory()
    directory.hold()
    directory.release()
    directory.release()
    directory.hold()
    directory.release()


def test_after_quarantine_the_store_is_empty(directory):
    for value in (b"first", b"second"):  # the second takes the place of the first
        store = directory.open(2)
        assert store.get("meta", [b"head"]) == [None]
        put(store, "meta", (b"head", value))
        store.close()
        assert "2" in directory.quarantine(2)
    other = directory.open(2)
    assert list(other.rows("meta")) == []
    other.close()


def test_a_missing_store_cannot_be_quarantined(directory):
    with pytest.raises(StateUnusable, match="quarantine"):
        directory.quarantine(7)


# The law: a store is a sorted dict

keys = st.binary(max_size=3) | st.sampled_from([b"\xff", b"\xff\xff", b"a", b"a\xff", b"b"])
tables = st.sampled_from(["queries", "meta"])
steps = st.one_of(
    st.tuples(st.just("put"), tables, st.lists(st.tuples(keys, st.none() | st.binary(max_size=4)))),
    st.tuples(st.just("delete"), tables, st.tuples(keys, keys).map(sorted)),
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(steps, max_size=4)),
        st.tuples(st.just("forget"), st.lists(steps, max_size=2)),
        st.tuples(st.just("reopen"), st.just(())),
        st.tuples(st.just("aside"), st.just(())),
    ),
    max_size=5,
)
Model = dict[Table, dict[bytes, bytes]]


def gather(store: StateStore, changes):
    batch = store.batch()
    for what, table, given_rows in changes:
        if what == "put":
            batch.put(table, given_rows)
        else:
            batch.delete_range(table, *given_rows)
    return batch


def changed(model: Model, changes) -> Model:
    after: Model = {table: dict(rows) for table, rows in model.items()}
    for what, table, given_rows in changes:
        rows = after[table]
        if what == "put":
            for key, value in given_rows:
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        else:
            first, end = given_rows
            after[table] = {k: v for k, v in rows.items() if not first <= k < end}
    return after


@settings(max_examples=examples(60))
@given(acts=acts, prefixes=st.lists(keys, max_size=5).map(sorted))
def test_any_sequence_of_acts_equals_that_on_a_dict(tmp_path_factory, acts, prefixes):
    path = tmp_path_factory.mktemp("state")
    for directory in (MemoryStateDirectory(), RocksStateDirectory(path)):
        directory.hold()
        store = directory.open(0)
        empty: Model = {"queries": {}, "meta": {}}
        model = empty
        for act, changes in acts:
            if act in ("write", "forget"):
                batch = gather(store, changes)
            if act == "write":
                batch.write()
                model = changed(model, changes)
            elif act in ("reopen", "aside"):
                store.close()
                if act == "aside":
                    directory.quarantine(0)
                    model = empty
                store = directory.open(0)
        for table, rows in model.items():
            assert list(store.rows(table)) == sorted(rows.items())
            assert store.get(table, prefixes) == [rows.get(key) for key in prefixes]
            for first, end in pairwise(prefixes):
                between = [row for row in sorted(rows.items()) if first <= row[0] < end]
                assert list(store.rows(table, first, end)) == between
        store.close()
        directory.release()
