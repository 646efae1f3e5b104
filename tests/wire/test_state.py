"""State as rows and checkpoints as records: they are read as written."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import Interner
from evaluator.core.columns.key_hashes import key_of, keys_from
from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.changes import (
    KEY_VERSION,
    AppliedRows,
    Changes,
    Checkpoint,
    Digest,
    Head,
    LastRecord,
    LogId,
    Origin,
)
from evaluator.core.join.judgments import PendingJudgment
from evaluator.core.measures.align import rank_lists
from evaluator.core.measures.exact_sums import StratumTotals, Sums
from evaluator.core.types.records import LOGS, Stratum
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records, kept
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.checkpoint import (
    FORMAT,
    CheckpointUnreadable,
    checkpoint_key,
    decode_checkpoint,
    encode_checkpoint,
)
from evaluator.wire.state.heads import N_DELAYS
from evaluator.wire.state.judgment_rows import judgment_rows, queries_from
from evaluator.wire.state.origin import commit_metadata, commit_note, generation_of, last_record
from evaluator.wire.state.ranking_rows import _MEMBERS as MEMBERS
from evaluator.wire.state.ranking_rows import RankingRows, ranking_rows
from evaluator.wire.state.task_rows import StateDamaged, row_key
from evaluator.worker.stored_judgments import StoredJudgments
from tests.repeats import examples
from tests.wire.messages import started_rows

ODD = ["a", "1:a", ":", "12", "ü", "\x00", "\x00\x00", "\u2028", "🙂", "a" * 256, '"', "\\"]
MOST = 2**63 - 1
ids = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
times = st.integers(-MOST, MOST)
offsets = st.integers(0, MOST)


def counted(*names):
    return st.fixed_dictionaries(dict.fromkeys(names, offsets))


again = counted("duplicate", "conflicting")
outcomes = counted("duplicate", "conflicting", "late", "orphan", "over_limit", "applied")
own_counts = counted(
    *("started", "out_of_order", "with_value", "expired", "settled", "nothing_relevant", "lost")
)
big = st.integers(-(10**40), 10**40)
sums = st.builds(Sums, offsets, st.lists(big, max_size=4), st.lists(big, max_size=4))
strata = st.builds(Stratum, st.text(), ids, st.lists(ids, max_size=3).map(tuple))
totals = st.builds(StratumTotals, sums, sums, sums, st.integers(0, MOST), st.integers(0, MOST))
last_records = st.builds(LastRecord, offsets, times, st.text("0123456789abcdef", min_size=1))
marks = st.builds(LogId, st.none() | st.text(max_size=30), st.none() | last_records)
origins = st.builds(Origin, st.fixed_dictionaries(dict.fromkeys(LOGS, marks)), offsets)
heads = st.builds(
    Head,
    origin=origins,
    positions=st.fixed_dictionaries(dict.fromkeys(LOGS, offsets)),
    clocks_ms=st.fixed_dictionaries(dict.fromkeys(LOGS, st.none() | offsets)),
    time_index=st.fixed_dictionaries(
        dict.fromkeys(LOGS, st.lists(st.tuples(offsets, offsets), max_size=3))
    ),
    read=st.fixed_dictionaries(dict.fromkeys(LOGS, counted("read", "malformed", "heartbeat"))),
    again=again,
    outcomes=outcomes,
    dead_letters=st.dictionaries(ids, offsets, max_size=3),
    counts=own_counts,
    delays=st.tuples(
        st.lists(offsets, min_size=N_DELAYS - 1, max_size=N_DELAYS - 1),
        st.integers(0, 10**20),
    ).map(lambda both: [*both[0], both[1]]),
    n_keys=offsets,
    next_run=offsets,
    skipped=st.fixed_dictionaries(
        dict.fromkeys(LOGS, st.lists(st.tuples(offsets, st.just(MOST)), max_size=2))
    ),
)


def rows_of(changes: Changes) -> dict[str, dict[bytes, bytes | None]]:
    """The rows that changes leave, by table."""
    tables: dict[str, dict[bytes, bytes | None]] = {table: {} for table in wire.TABLES}
    for table, rows in wire.rows_of(changes):
        tables[table].update(rows)
    return tables


# Heads, sums


@given(head=heads)
@settings(max_examples=examples(60))
def test_a_head_is_read_as_written(head):
    assert wire.head_from(wire.head_row(head)) == head


@given(stratum=strata, of_stratum=totals)
@settings(max_examples=examples(60))
def test_totals_of_any_size_are_read_as_written(stratum, of_stratum):
    rows = rows_of(Changes(totals={stratum: of_stratum}))["totals"]
    ((key, value),) = rows.items()
    assert wire.stratum_from(key) == stratum
    assert wire.totals_row_from(value or b"") == of_stratum


@given(start_ms=times, by_stratum=st.dictionaries(strata, sums, min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_a_window_is_read_as_written(start_ms, by_stratum):
    rows = rows_of(Changes(windows={start_ms: by_stratum}))["windows"]
    ((key, value),) = rows.items()
    assert wire.window_from(key, value or b"") == (start_ms, by_stratum)


def test_a_final_window_is_deleted():
    assert rows_of(Changes(windows={5: {}}))["windows"] == {(5).to_bytes(8, "big"): None}


# Queries by key, and runs


def test_versions_of_keys_are_read_as_written():
    one = np.array([(7, -5, 9, b"\xff" * 16)], KEY_VERSION)
    two = np.array([(9, MOST, 0, b"\0" * 16), (7, -MOST, 1, b"\1" * 16)], KEY_VERSION)
    found = wire.versions_from([None, two.tobytes(), one.tobytes(), None])
    assert [each.tolist() for each in found.each()] == [[], two.tolist(), one.tolist(), []]


@given(
    number=offsets,
    entries=st.lists(st.tuples(times, offsets, st.binary(min_size=16, max_size=16)), max_size=4),
    release_only=st.booleans(),
    ends=st.tuples(times, times, offsets, offsets),
)
@settings(max_examples=examples(60))
def test_a_run_and_its_entries_are_read_as_written(number, entries, release_only, ends):
    columns = [np.array([row[at] for row in entries], np.int64) for at in (0, 1)]
    slots = np.zeros(len(entries), np.int64)
    run = Run(number, Entries(*columns, slots), len(entries), *ends, release_only=release_only)
    run_keys = [row[2] for row in entries]
    tables = rows_of(Changes(runs={number: (run, keys_from(run_keys))}))
    key = row_key(number)
    found = wire.run_from(key, tables["runs"][key] or b"")
    assert (found.number, found.n_queries, found.release_only, found.on_disk, found.entries) == (
        *(number, len(entries), release_only, True),
        None,
    )
    assert (found.earliest_ms, found.latest_ms, found.first_offset, found.last_offset) == ends
    read, read_keys = wire.entries_from(tables["entries"][key] or b"", len(entries))
    assert read.times_ms.tolist() == columns[0].tolist()
    assert read.offsets.tolist() == columns[1].tolist()
    assert read.rows.tolist() == [-1] * len(entries)
    assert read_keys.tolist() == run_keys


def test_an_ended_run_is_deleted():
    key = row_key(3)
    tables = rows_of(Changes(runs={3: None}))
    assert tables["runs"] == tables["entries"] == {key: None}


# Queries, with their judgments and results


def ranking(trace_id: str) -> bytes:
    return json.dumps({
        "schema_version": 1, "trace_id": trace_id, "node_id": "n", "timestamp_ms": 5,
        "candidate_ids": ["a", "ü"], "scores": [2.0, 1.0],
    }).encode()  # fmt: skip


def judgment(trace_id: str, **more: object) -> bytes:
    return json.dumps({
        "schema_version": 1, "trace_id": trace_id, "node_id": "n", "timestamp_ms": 6,
        "grades": {"a": 1, "ü": None}, **more,
    }).encode()  # fmt: skip


def test_queries_are_read_with_their_judgments_and_results():
    first, second = 1, MOST - 1
    columns = [second, first], [0, 1], [3, 4], [-7, 8], [6, 6]
    rankings = decoded([0, first, second], [ranking("t0"), ranking("t1"), ranking("t2")])
    changes = Changes(
        started=[started_rows(rankings, [1, 2], [-7, MOST])],
        applied=[
            AppliedRows(*map(np.array, columns), ByteStrings.of([judgment("t2"), judgment("t1")]))
        ],
        applied_singly=[
            (
                *(first, 0),
                PendingJudgment(
                    *(2, 6, 9, key_of("t1", "n"), ("t1", "n"), None, b"", {}, b"key"),
                    judgment("t1", judgment_id="j"),
                ),
            )
        ],
        results=[
            (np.array([first]), np.array([1]), np.array([9])),
            (np.array([first, second]), np.array([3, 0]), np.array([1, -1, 2**40])),
        ],
    )
    starts, rows = ranking_rows(changes.started)
    assert starts.tolist() == [first]
    stored_rows = RankingRows(rows)
    times, hashes = stored_rows.heads(np.array([first, second]))
    assert (times.tolist(), hashes.tolist()) == ([-7, MOST], rankings.hashes[1:].tolist())
    ranked = stored_rows.rankings(np.array([first, second]))
    assert ranked.timestamps_ms.tolist() == [-7, MOST]
    judgments = StoredJudgments(store := MemoryStateStore())
    judgments.write(batch := store.batch(), changes)
    batch.write()
    stored = queries_from(ranked, judgments.of(np.array([first, second])), task=0)
    assert stored.rankings.trace_ids == ["t1", "t2"]
    assert stored.judgments.offsets.tolist() == [2, 3, 4]
    assert stored.judgments.trace_ids == ["t1", "t2", "t1"]
    assert stored.judgments.judgment_ids == ["j", None, None]
    assert stored.judgment_event_times_ms.tolist() == [9, -7, 8]
    assert stored.judgments.grades[0] == {"a": 1.0, "ü": None}
    assert stored.result_lengths.tolist() == [3, 0]
    assert stored.results.tolist() == [1, -1, 2**40]


def test_a_row_of_judgments_with_itself_as_predecessor_is_damage():
    judgments, earlier = StoredJudgments(store := MemoryStateStore()), np.array([0])
    value = b'{"schema_version":1,"trace_id":"t","node_id":"n","timestamp_ms":5,"grades":{}}'
    applied = AppliedRows(*map(np.array, ([7], [0], [2], [5], [5])), ByteStrings.of([value]))
    changes = Changes(applied=[applied], results=[(np.array([7]), np.array([0]), np.array([]))])
    judgments.write(batch := store.batch(), changes)
    batch.put("judgments", [(row_key(0), *judgment_rows(changes, applied, earlier, earlier))])
    batch.write()
    with pytest.raises(StateDamaged, match="row 0 of judgments"):
        judgments.of(np.array([7]))


def decoded(offsets, values, *, features=False):
    stamps, keys = [5] * len(values), [None] * len(values)
    records = Records.of("rankings", 0, offsets, keys, values, stamps, offsets[-1] + 1)
    return decode_rankings(
        records, max_future_skew_ms=0, features=features, segments=("locale", "device")
    )


def row_of(rankings, *, ties=False):
    """All of the rankings in one row."""
    (row,) = ranking_rows([started_rows(rankings, ties=ties)])[1]
    return row


LOCALE = {"locale": "de", "other": "x"}
EVERYTHING = [
    {"candidate_ids": [], "scores": []},
    {"candidate_ids": ["a", "a", "\x00"], "scores": [0.1, -0.0, 3], "model": "m", "query": "q"},
    {"candidate_ids": ["a", "b"], "ranks": [2, 1], "scorers": {"z": [1, 2], "b": [3, 1e300]}},
    {"candidate_ids": ["a"], "scores": [1], "subtopics": {"a": ["x", "y"], "b": None}},
    {"candidates": [{"id": "a", "score": 1, "published_ms": 7}, {"id": "b", "score": 2}]},
    {"candidate_ids": ["a"], "scores": [1], "features": [[1.5, 2]], "propensities": [0.5]},
    {"candidate_ids": ["a"], "scores": [1], "features": [[1]], "feature_names": ["x"]},
    {"candidate_ids": ["a", "b"], "scores": [1, 2], "exposed": [True, False], "segments": LOCALE},
    {"candidate_ids": ["a", "b"], "scores": [1, 2], "exposed_top": 0, "propensities": [0.5, 1]},
    {"candidate_ids": ["b", "a", "b"], "scores": [1, 2, 3], "exposed": [True, True, False]},
]


@pytest.mark.parametrize("features", [False, True])
def test_rankings_are_read_as_decoded(features):
    messages = [
        json.dumps({"schema_version": 1, "trace_id": f"t{at}", "node_id": "n", **more}).encode()
        for at, more in enumerate(EVERYTHING)
    ]
    offsets = [3 * at for at in range(len(messages))]
    given = decoded(offsets, messages, features=features)
    assert len(given) == len(messages)
    chosen = np.array(offsets)
    found = RankingRows([row_of(given)]).rankings(chosen, features=features)
    assert found.timestamps_ms.tolist() == [5] * len(messages)
    assert columns_of(found) == columns_of(given)
    one = RankingRows([row_of(given)]).rankings(chosen[2:3], features=features)
    assert columns_of(one) == columns_of(decoded(offsets[2:3], messages[2:3], features=features))


def test_ranks_of_tied_candidates_are_read_as_written():
    tied = [
        json.dumps({
            "schema_version": 1, "trace_id": "t", "node_id": "n",
            "candidate_ids": list("abcd"), "scores": scores,
        }).encode()
        for scores in ([1, 2, 1, 1], [4, 3, 2, 1])
    ]  # fmt: skip
    row = row_of(decoded([3, 5], tied), ties=True)
    ranks = RankingRows([row]).rankings(np.array([3])).ranks
    assert ranks.ranks.tolist() == [4, 1, 3, 2]
    assert [bounds.tolist() for bounds in ranks.ties] == [[2, 1, 2, 2], [4, 1, 4, 4]]


def test_rankings_of_several_batches_share_rows():
    batches = [
        decoded(list(range(first, first + n)), [ranking(f"t{first}")] * n)
        for first, n in ((0, 3), (3, 40), (50, 1))
    ]
    starts, rows = ranking_rows([started_rows(batch) for batch in batches])
    assert starts.tolist() == [0, 32]
    offsets = np.array([0, 31, 32, 42, 50])
    found = RankingRows(rows).rankings(offsets)
    assert found.trace_ids == ["t0", "t3", "t3", "t3", "t50"]
    assert found.candidate_ids.values() == ["a", "ü"] * 5


def columns_of(rankings):
    """All members, except those that are not stored; and ranks."""
    members = asdict(rankings)
    ids, features = members["candidate_ids"].values(), members["features"]
    members["strata"] = members["strata"].values()
    members["texts"] = list(members["texts"])
    if features is not None:
        members |= asdict(features)
    codes = Interner().of_column(rankings.candidate_ids)
    n_rankers = np.array([len(stratum.rankers) for stratum in members["strata"]])
    members |= asdict(rank_lists(rankings, codes, n_rankers))
    unlike = ("timestamps_ms", "values", "keys", "key_hashes", "candidate_ids", "features")
    for name in (*unlike, "scores", "explicit_ranks", "ranks", "exposed"):
        del members[name]
    members["levels"] = members["levels"].values()
    if features is None:
        del members["propensities"]  # by rank, in `served`
    return {
        name: repr(value.tolist() if isinstance(value, np.ndarray) else value)
        for name, value in members.items()
    }, ids


def test_a_missing_query_is_damage():
    row = row_of(decoded([8, 10], [ranking("t"), ranking("u")]))
    for rows, offset in (([row], 9), ([row], 11), ([None], 9)):
        with pytest.raises(StateDamaged, match=f"offset {offset} is missing"):
            RankingRows(rows).rankings(np.array([offset]))


def test_an_unreadable_row_is_damage():
    row = row_of(decoded([9], [ranking("t")]))
    for damaged in (row[:-1], row[:7], row[:20], row[:24] + b"\xc1" * 80, row[:90] + row[91:]):
        with pytest.raises(StateDamaged):
            RankingRows([damaged]).rankings(np.array([9]))


def changed_row(member, value):
    """A row of three rankings, at offsets from 8 on, with another value of a member at offset 9."""
    row = row_of(decoded([8, 9, 10], [ranking("t"), ranking("u"), ranking("v")]))
    at = row.index(np.int64(9).tobytes())
    members = np.frombuffer(row, MEMBERS, 1, at).copy()
    assert members["offset"] == [9]
    members[member] = value
    return row[:at] + members.tobytes() + row[at + MEMBERS.itemsize :]


@pytest.mark.parametrize(
    ("member", "value"), [("stratum", 1), ("n_candidates", 3), ("text_sizes", [2, 2, 2])]
)
def test_a_ranking_with_members_that_contradict_its_row_is_damage(member, value):
    rows = RankingRows([changed_row(member, value)])
    assert len(rows.rankings(np.array([8, 10]))) == 2
    with pytest.raises(StateDamaged):
        rows.rankings(np.array([9]))


@pytest.mark.parametrize("column", range(4))
def test_a_row_with_a_wrong_size_of_any_ranking_is_damage(column):
    row = changed_row("n_candidates", 2)
    sizes = np.frombuffer(row, MEMBERS, 3, row.index(np.int64(8).tobytes()))["sizes"][1].astype(int)
    for change in (-sizes[column], 1, 8):
        changed = sizes + change * (np.arange(4) == column)
        with pytest.raises(StateDamaged, match="columns of other lengths"):
            RankingRows([changed_row("sizes", changed)])


def test_queries_that_share_a_key_are_marked():
    assert rows_of(Changes(renamed=[3, 5]))["renamed"] == {row_key(3): b"", row_key(5): b""}


# Early judgments


@pytest.mark.parametrize("record_key", [None, b"", b"key", b"\xff\x00"])
@pytest.mark.parametrize("judgment_id", [None, "j-ü"])
def test_an_early_judgment_is_read_as_written(record_key, judgment_id):
    value = judgment("t", judgment_id=judgment_id, subtopics={"a": ["s"]})
    pending = PendingJudgment(
        offset=MOST - 1,
        timestamp_ms=6,
        event_ms=-3,
        key=key_of("t", "n"),
        names=("t", "n"),
        judgment_id=judgment_id,
        hash=b"",
        grades={"a": 1.0, "ü": None},
        record_key=record_key,
        value=value,
        subtopics={"a": ["s"]},
    )
    rows = rows_of(Changes(early={pending.offset: pending}))["early"]
    (found,) = wire.early_from(((k, v or b"") for k, v in rows.items()), task=0)
    assert len(found.hash) == 16
    assert {**found._asdict(), "hash": b"", "subtopics": {"a": ["s"]}} == pending._asdict()
    assert list((found.subtopics or {})["a"] or ()) == ["s"]


def test_a_judgment_that_is_no_longer_early_is_deleted():
    assert rows_of(Changes(early={2: None}))["early"] == {(2).to_bytes(8, "big"): None}


# Identity


def test_differences_of_identities_are_named():
    row = wire.identity_row({"cluster_id": "a", "task": 1})
    assert wire.identity_differs(row, {"cluster_id": "a", "task": 1}) == []
    assert wire.identity_differs(row, {"cluster_id": "b", "task": 1, "fingerprint": "x"}) == [
        "cluster_id is 'a', not 'b'",
        "fingerprint is None, not 'x'",
    ]


@pytest.mark.parametrize("row", [b"", b"{", b"[]", b"1", b"\xff"])
def test_an_unreadable_identity_never_matches(row):
    assert wire.identity_differs(row, {}) == ["its identity cannot be read"]


# Identities of logs


def records_of(*rows):
    """Rows of (key, value, timestamp), at the offsets 7, 8 ..."""
    keys, values, stamps = zip(*rows, strict=True)
    offsets = list(range(7, 7 + len(rows)))
    columns = offsets, keys, values, stamps
    return Records.of("rankings", 0, *columns, offsets[-1] + 1)


def test_the_last_read_record_is_identified_by_all_its_parts():
    known = last_record(records_of((b"k", b"first", 1), (b"k", b"v", 2)))
    assert (known.offset, known.timestamp_ms, len(known.hash)) == (8, 2, 32)
    assert last_record(records_of((None, None, 9), (b"k", b"v", 2))) == known
    others = [(b"k", b"v", 3), (b"k", b"w", 2), (None, b"v", 2), (b"kv", b"", 2), (b"k", None, 2)]
    found = {last_record(records_of((b"k", b"first", 1), other)) for other in others}
    assert len(found | {known}) == len(others) + 1


def test_only_the_kept_beginning_of_a_record_is_hashed():
    whole = b"v" * (MAX_MESSAGE_BYTES + 1)
    long = kept(whole)
    assert len(long) < len(whole)
    assert last_record(records_of((long, long, 1))) == last_record(records_of((whole, whole, 1)))
    assert last_record(records_of((b"k", long[1:], 1))) != last_record(records_of((b"k", long, 1)))


@given(origin=origins, fingerprint=st.text())
@settings(max_examples=examples(40))
def test_commit_metadata_are_read_as_written(origin, fingerprint):
    for log in LOGS:
        note = commit_note(commit_metadata(fingerprint, origin, log))
        assert note == (fingerprint, origin.logs[log], origin.ends_lost)


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "x", "[", "[1]", "null", "[" * 9_999),
        *('["a", 1, null, 0]', '["a", null, [1, 2], 0]', '["a", null, [1, 2, 3], 0]'),
        *('["a", null, null, "0"]', '[["a"], null, null, 0]'),
    ],
)
def test_foreign_commit_metadata_are_read_as_a_fingerprint(metadata):
    assert commit_note(metadata) == (metadata, LogId(), 0)


def test_a_generation_has_the_topics_and_the_number_of_lost_ends():
    def generation(rankings, judgments, ends_lost, last=None):
        marks = {"rankings": LogId(rankings, last), "judgments": LogId(judgments, None)}
        return generation_of(Origin(marks, ends_lost))

    once = generation("r", "j", 0)
    assert once == generation("r", "j", 0, last=LastRecord(1, 2, "ab"))
    assert generation("r", "j", 1) == f"{once}.1"
    others = {generation(*each) for each in [("j", "r", 0), ("r", None, 0), (None, None, 0)]}
    assert len(others | {once}) == 4


# Checkpoint records

checkpoints = st.builds(
    Checkpoint,
    head=heads,
    restore_offsets=st.just(dict.fromkeys(LOGS, 0)),
    watermark_ms=st.none() | times,
    totals=st.dictionaries(strata, totals, max_size=2),
    digest=st.builds(Digest, *[st.integers(-(10**30), 10**30)] * 5),
)


@given(checkpoint=checkpoints)
@settings(max_examples=examples(60))
def test_a_checkpoint_is_read_as_written(checkpoint):
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_each_task_and_fingerprint_has_a_key_of_its_own():
    pairs = [(task, fingerprint) for task in (1, 11) for fingerprint in ("ab", "1ab")]
    assert len({checkpoint_key(*pair) for pair in pairs}) == len(pairs)


@given(checkpoint=checkpoints)
@settings(max_examples=examples(12))
def test_a_checkpoint_without_one_of_its_members_is_refused(checkpoint):
    document = json.loads(encode_checkpoint(checkpoint))
    for name in document:
        rest = {each: document[each] for each in document if each != name}
        with pytest.raises(CheckpointUnreadable):
            decode_checkpoint(json.dumps(rest).encode())
    required = set(checkpoint.head.__struct_fields__) - {"skipped"}  # nothing, where it is missing
    for name in required:
        head = {each: document["head"][each] for each in document["head"] if each != name}
        with pytest.raises(CheckpointUnreadable):
            decode_checkpoint(json.dumps({**document, "head": head}).encode())


ALONE = json.dumps({"format": FORMAT}).encode()


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"1", b"\xff", ALONE])
def test_an_invalid_checkpoint_is_refused(value):
    with pytest.raises(CheckpointUnreadable, match="cannot be read"):
        decode_checkpoint(value)


def test_a_checkpoint_of_another_format_is_refused_by_its_number():
    with pytest.raises(CheckpointUnreadable, match=f"format is {FORMAT + 1}, and this .* {FORMAT}"):
        decode_checkpoint(json.dumps({"format": FORMAT + 1}).encode())
