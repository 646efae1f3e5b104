"""Arbitrary bytes: a reader returns a value, or raises its documented exception."""

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import evaluator
from evaluator.adapters.kafka.schemas import AnswerUnreadable, read_answer, read_key
from evaluator.comparison.folder import read_folder
from evaluator.core.alarms.alarm import Alarm
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.features import Success, SuccessTable
from evaluator.core.join.changes import (
    AppliedRows,
    Changes,
    Checkpoint,
    Digest,
    LastRecord,
    LogId,
    Origin,
)
from evaluator.core.learning.transforms import Transform
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import StratumTotals, Sums
from evaluator.core.online.alarm_watch import AlarmWatch, SeriesEvent, WatchResult
from evaluator.core.online.events import Command
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.watched import AlarmCommand, SeriesName, WatchRules
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.records import LOGS, Stratum, WatermarkRecord
from evaluator.ports import SourceUnusable
from evaluator.wire.alarms.records import AlarmRefused, event_record, read_event
from evaluator.wire.alarms.records import command_record as alarm_command_record
from evaluator.wire.alarms.records import read_command as read_alarm_command
from evaluator.wire.alarms.state import AlarmState, AlarmStateRefused
from evaluator.wire.canonical import checksum_of, encode_document
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.messages.samples import SampleRefused, Samples
from evaluator.wire.messages.strict import read_message
from evaluator.wire.outputs.encoding import encode_watermark
from evaluator.wire.outputs.settled import SettledUnreadable, decode_settled, order_position_of
from evaluator.wire.reading import MAX_NESTING, Reader, refused_as, too_deep
from evaluator.wire.records import Records
from evaluator.wire.state import task_rows as state
from evaluator.wire.state.checkpoint import (
    CheckpointUnreadable,
    decode_checkpoint,
    encode_checkpoint,
)
from evaluator.wire.state.judgment_rows import JudgmentRow, judgment_rows, queries_from
from evaluator.wire.state.origin import commit_metadata, commit_note
from evaluator.wire.state.ranking_rows import RankingRows, ranking_rows
from evaluator.wire.state.snapshots import (
    Manifest,
    ManifestUnreadable,
    SnapshotFile,
    decode_manifest,
    encode_manifest,
)
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.wire.weights.checksum import WeightsRefused, checksum_in
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    CommandRefused,
    RecordWriter,
    StateRefused,
    command_key,
    command_model_of,
    command_record,
    model_of,
    read_command,
    read_log_record,
    read_state,
    weights_key,
)
from evaluator.wire.weights.weights_record import read_live, read_weights
from tests.comparison.rows import row
from tests.core.alarms.worlds import feed, watched
from tests.core.described import described_world, graphs
from tests.core.learned import N_TASKS, interleaved, rules, world
from tests.engines import engine_of
from tests.leader.leadership import settled_value
from tests.repeats import IS_QUICK
from tests.wire import messages, mutations

SEED = 20261122
MUTANTS = 12 if IS_QUICK else int(os.environ.get("WIRE_DOCUMENTS", "300"))
SLOW = {"state of the leader", "weights", "live weights", "record of the log of weights"}

POISONS = [
    *(b"9223372036854775808 -9223372036854775809 -1 1e400 -1e400 NaN Infinity 1.0 0.5").split(),
    *(b"null true [] {} [[]] 1e308 -1e308 1e15").split(), b'"x"', b'""', b'"7"', b'"\\ud800"',
    b'"\xed\xa0\x80"', b'"\xff"', b"9" * 400, b"9" * 5_000, b"-" + b"9" * 400, b"[" * 100_000,
    b"[" * 65 + b"]" * 65, b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"a":' * 100_000, b'"' + b"x" * 70_000 + b'"', b"[1,2,3]", b'{"0":[1,2]}', b'{"served":{}}',
]  # fmt: skip
MEASURES = MeasureSet.parse(["mrr", "ndcg@10"])
TABLE = SuccessTable({("tool", "a"): Success(1 << 39, 3), ("graph", "chain"): Success(0, 1)}, 2)
ORIGIN = Origin(
    {"rankings": LogId("id", LastRecord(8, 1_000, "ab")), "judgments": LogId(None, None)}, 1
)
RULES = rules(learning_interval_ms=20_000)


class Kind(NamedTuple):
    """A reader, its valid documents, and the exception that it may raise; None: no exception."""

    documents: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    refused: type[Exception] | None


@cache
def leader_records() -> list[tuple[str, bytes, bytes]]:
    """Topic, key and value of a leader's records for a small world of each kind."""
    found = []
    for queries in (world(3, 300), described_world(graphs, n_queries=200)):
        record_writer = RecordWriter("fingerprint", {"loss": "softmax"}, "workers")
        leader = OnlineLearner(RULES, n_tasks=N_TASKS)
        for batch in interleaved(queries, random.Random(0)):
            for interval in leader.receive(batch):
                records = record_writer.records(interval)
                found += [(topic, record.key, record.value) for topic, record in records]
    return found


def weights() -> list[bytes]:
    return [value for topic, _, value in leader_records() if topic == "weights-log"][::5]


def states() -> list[bytes]:
    return [value for _, key, value in leader_records() if key == STATE_KEY][1::4]


def totals() -> dict[Stratum, StratumTotals]:
    sums = Sums(7, [1 << 90, 5], [1, 0])
    return {Stratum("m", "v", ("served",)): StratumTotals(sums, sums, sums, 3, 4)}


def running() -> dict[Stratum, Sums]:
    return {stratum: each.running for stratum, each in totals().items()}


def checkpoints() -> list[bytes]:
    engine = engine_of(
        MEASURES,
        **dict.fromkeys(("retention_ms", "maturity_ms", "early_ms", "remember_ms"), 10),
        out_of_orderness_ms=5,
        window_ms=10,
    )
    head = engine.head
    head.positions, head.origin = dict.fromkeys(LOGS, 9), ORIGIN
    head.clocks_ms = dict.fromkeys(LOGS, 1_000)
    head.time_index = {log: [(500, 3), (900, 7)] for log in LOGS}
    checkpoint = Checkpoint(
        head, dict.fromkeys(LOGS, 3), 995, totals(), Digest(1, 2, 3, 1 << 80, 1 << 90)
    )
    empty = Checkpoint(head, dict.fromkeys(LOGS, 0), None, {}, Digest(0, 0, 0, 0, 0))
    return [encode_checkpoint(checkpoint), encode_checkpoint(empty)]


def resealed(value: bytes) -> bytes:
    """The record with the checksum that its other members have, if it is JSON at all."""
    try:
        record = json.loads(value)
        checksum = checksum_of(record)
    except (ValueError, RecursionError, AttributeError, TypeError, OverflowError):
        return value
    return encode_document({**record, "checksum": checksum})


def follow_state(value: bytes) -> None:
    """Continues from a state, like a newly elected leader."""
    found = read_state(resealed(value))
    with refused_as(StateRefused, "it does not fit"):
        leader = OnlineLearner(RULES, n_tasks=N_TASKS, state=found.state)
    assert len(leader.views) == len(leader.model_learners)
    encode_document(leader.state())
    found.for_other_workers(), found.without(0, 1)


def read_samples(value: bytes) -> None:
    samples = Samples(features=True)
    samples.add(value)
    samples.rankings(), samples.judgments(), samples.features()


def read_ranking_row(value: bytes) -> None:
    RankingRows([value]).rankings(np.array([5]), features=True)


def query_row(message: dict) -> bytes:
    records = Records.of("rankings", 0, [5], [None], [messages.as_bytes(message)], [1_000], 6)
    rankings = decode_rankings(records, max_future_skew_ms=1 << 62, features=True)
    return next(ranking_rows([messages.started_rows(rankings)])[1])


def judgment_row(message: dict) -> bytes:
    columns = map(np.array, ([5], [0], [7], [1_000], [1_000]))
    applied = AppliedRows(*columns, ByteStrings.of([messages.as_bytes(message)]))
    result = np.array([5]), np.array([2]), np.array([1, 2])
    first = np.array([0])
    return next(judgment_rows(Changes(results=[result]), applied, first - 1, first))


def read_judgment_row(value: bytes) -> None:
    row = [query_row(messages.ranking())]
    ranked = RankingRows(row).rankings(np.array([5]))
    queries_from(ranked, [JudgmentRow(value).of(5)[0]], task=0)


def read_replayed(tmp_path: Path, name: str) -> Callable[[bytes], None]:
    def read(value: bytes) -> None:
        (tmp_path / "manifest.json").unlink(missing_ok=True)
        (tmp_path / "evaluations.ndjson").write_bytes(row("a", {"served": 0.5}) + b"\n")
        (tmp_path / name).write_bytes(value.replace(b"\n", b" ") + b"\n")
        evaluations = read_folder(
            tmp_path, "running", rankers=None, measures=None, with_grades=True, on_read=len
        )
        for place in range(len(evaluations)):
            evaluations.shown(place)

    return read


def row_of(table: str, changes: Changes) -> bytes:
    rows = {name: list(each) for name, each in state.rows_of(changes)}
    return rows[table][0][1]


RUN_KEY = bytes(8)
SNAPSHOT = Manifest(
    1,
    {"rankings": 7, "judgments": 9},
    [SnapshotFile(name, "0a" * 32, 5) for name in ("000007.sst", "MANIFEST-000004", "CURRENT")],
)
GRAPH = (
    b'{"task":0,"n":1,"settled_time_ms":9,"event_time_ms":5,"model":"m","trace_id":"t",'
    b'"node_id":"n","grades":{"a":1},"values":{"served":{"mrr":0.5}},"sources":{"s":1},'
    b'"candidate_kind":"graph","query":"q","candidate_ids":["a"],'
    b'"graphs":[{"type":"t","text":"x","n_nodes":1,"n_edges":2}],"propensities":[0.5]}'
)
ALARM_NAME = SeriesName("m", "v", "served", "ndcg@10", "", "", "own")
ALARM_EVENT = SeriesEvent(
    "on", ALARM_NAME, 7_200_000, Alarm(7_200_000, 3_600_000, 6, 0.1, 0.5, 0.6, 0.01, 1.7, 90)
)
CLIPPED = Transform(0.0, 30.5, log1p=True)
ALARM_COMMAND = AlarmCommand("x", "exclude", {"model": "m"}, 1, 2, 3)
ALARM_RULES = WatchRules(alarms=AlarmRules(max_series=1), measures=("ndcg@10",))


@cache
def alarm_state() -> dict[bytes, bytes]:
    """Head, series, reference and a day."""
    series, now = watched(weeks=2)
    feed(series, range(now, now + 2), 0.3)
    watch = AlarmWatch(ALARM_RULES, n_tasks=1)
    first = world(3, 1)[0]._replace(task=0, n=0, event_time_ms=now * 3_600_000)
    queries = WatchedQueries.of_settled([first], ALARM_RULES.columns())
    watch.receive(0, [queries, WatermarkRecord(first.settled_time_ms, 1)], WatchResult())
    watch.series = {ALARM_NAME: series}
    records = AlarmState("f").written(watch)[:4]
    return {record.key or b"": record.value for record in records}


def load_alarms(at: int, value: bytes) -> None:
    """Loads a state with one record replaced."""
    records = dict(alarm_state())
    records[list(records)[at]] = value
    watch = AlarmWatch(ALARM_RULES, n_tasks=1)
    AlarmState("f", records=records).load(watch)


MANIFEST = {"format": 2, "version": "1", "code_sha256": "c", "settings": {"a": [1]}, "chain": "d"}
KINDS: dict[str, Kind] = {
    "ranking": Kind(
        lambda: [messages.as_bytes(messages.ranking())], lambda v: read_message(v, Ranking), None
    ),
    "judgment": Kind(
        lambda: [messages.as_bytes(messages.judgment())], lambda v: read_message(v, Judgment), None
    ),
    "checkpoint": Kind(
        checkpoints, lambda v: decode_checkpoint(v, measures=MEASURES), CheckpointUnreadable
    ),
    "head": Kind(
        lambda: [json.dumps(json.loads(each)["head"]).encode() for each in checkpoints()],
        state.head_from,
        StateDamaged,
    ),
    "note of a commit": Kind(
        lambda: [commit_metadata("fingerprint", ORIGIN, log).encode() for log in LOGS],
        lambda v: commit_note(v.decode(errors="replace")),
        None,
    ),
    "identity": Kind(
        lambda: [state.identity_row({"cluster": "c", "task": 1})],
        lambda v: state.identity_differs(v, {"task": 1}),
        None,
    ),
    "stratum": Kind(
        lambda: [state.stratum_row(each) for each in totals()], state.stratum_from, StateDamaged
    ),
    "totals": Kind(
        lambda: [row_of("totals", Changes(totals=totals()))], state.totals_row_from, StateDamaged
    ),
    "window": Kind(
        lambda: [row_of("windows", Changes(windows={5: running()}))],
        lambda v: state.window_from(RUN_KEY, v),
        StateDamaged,
    ),
    "run": Kind(lambda: [bytes(40) + b"\1"], lambda v: state.run_from(RUN_KEY, v), StateDamaged),
    "entries": Kind(
        lambda: [bytes(64)],
        lambda v: state.entries_from(v, 2),
        StateDamaged,
    ),
    "key_versions": Kind(
        lambda: [bytes(40)], lambda v: state.versions_from([v, None]), StateDamaged
    ),
    "early": Kind(
        lambda: [bytes(16) + b"\xff" * 8 + messages.as_bytes(messages.judgment())],
        lambda v: state.early_from([(RUN_KEY, v)], task=0),
        StateDamaged,
    ),
    "row of a ranking": Kind(
        lambda: [query_row(messages.ranking())], read_ranking_row, StateDamaged
    ),
    "row of a judgment": Kind(
        lambda: [judgment_row(messages.judgment())], read_judgment_row, StateDamaged
    ),
    "settled": Kind(
        lambda: [
            *map(settled_value, world(5, 6)),
            encode_watermark(WatermarkRecord(5, 7), task=0).value,
            GRAPH,
        ],
        lambda v: decode_settled(v, MEASURES),
        SettledUnreadable,
    ),
    "place": Kind(lambda: [GRAPH], order_position_of, SettledUnreadable),
    "manifest of a snapshot": Kind(
        lambda: [encode_manifest(SNAPSHOT)],
        lambda v: decode_manifest(v, SNAPSHOT.progress),
        ManifestUnreadable,
    ),
    "weights": Kind(weights, read_weights, WeightsRefused),
    "live weights": Kind(weights, read_live, WeightsRefused),
    "checksum": Kind(weights, checksum_in, WeightsRefused),
    "record of the log of weights": Kind(weights, read_log_record, WeightsRefused),
    "command": Kind(
        lambda: [
            command_record(Command(1, "freeze", "why")),
            command_record(Command(2, "roll_back", "why", (0.5,), ("a",), TABLE)),
            command_record(Command(2, "roll_back", "why", (0.5,), ("a",), None, {"a": CLIPPED})),
        ],
        read_command,
        CommandRefused,
    ),
    "key of weights": Kind(lambda: [weights_key("m"), command_key("m")], model_of, None),
    "key of a command": Kind(lambda: [weights_key("m"), command_key("m")], command_model_of, None),
    "event of alarms": Kind(lambda: [event_record(ALARM_EVENT).value], read_event, AlarmRefused),
    "command to alarms": Kind(
        lambda: [alarm_command_record(ALARM_COMMAND).value], read_alarm_command, AlarmRefused
    ),
    **{
        f"state of alarms, {number}": Kind(
            partial(lambda at: [list(alarm_state().values())[at]], number),
            partial(load_alarms, number),
            AlarmStateRefused,
        )
        for number in range(4)
    },
    "state of the leader": Kind(states, follow_state, StateRefused),
    "key of an answer of a registry": Kind(
        lambda: [b'{"registry":"http://r","id":"7","record":"a","unknown":1}'],
        read_key,
        AnswerUnreadable,
    ),
    "answer of a registry": Kind(
        lambda: [
            b'{"refused":"is unknown to the registry"}',
            b'{"kind":"AVRO","schema":"{\\"type\\":\\"int\\"}","references":[["a","b"]]}',
        ],
        read_answer,
        AnswerUnreadable,
    ),
    "samples": Kind(
        lambda: [
            b'{"trace_id":"t","node_id":"n","tool":"a","query":"q","features":[1,2],"label":2}',
            b'{"trace_id":"t","node_id":"n","candidate_id":"a","graph":{"type":"t","nodes":[1]}}',
            b'{"trace_id":"t","node_id":"n","candidate_id":"a","features":[0.5],"propensity":0.5}',
        ],
        read_samples,
        SampleRefused,
    ),
    "evaluations": Kind(
        lambda: [row("t", {"served": 0.5, "bm25": 1}, query="q")], bool, SourceUnusable
    ),
    "manifest": Kind(
        lambda: [json.dumps({**MANIFEST, "files": {"a": {"sha256": "x"}}}).encode()],
        bool,
        SourceUnusable,
    ),
}
"""`evaluations` and `manifest` are read by `read_replayed`, which needs a folder."""
FILES = {"evaluations": "evaluations.ndjson", "manifest": "manifest.json"}


def poisoned(value: bytes, rng: random.Random) -> bytes:
    """*value* with a poison in the place of one or two of its tokens, or as mutations leave it."""
    if rng.random() < 0.4:
        return mutations.mutant(value, rng)
    for _ in range(rng.choice([1, 1, 2])):
        tokens = list(re.finditer(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null', value))
        if not tokens:
            return value + rng.choice(POISONS)
        token = rng.choice(tokens)
        value = value[: token.start()] + rng.choice(POISONS) + value[token.end() :]
    return value


@pytest.mark.parametrize("name", KINDS)
def test_a_reader_raises_only_its_own_exception(name, tmp_path):
    kind, rng = KINDS[name], random.Random(f"{SEED} {name}")
    read = read_replayed(tmp_path, FILES[name]) if name in FILES else kind.read
    documents = kind.documents()
    for document in documents:
        read(document)  # it is valid
    for _ in range(MUTANTS // (4 if name in SLOW else 1)):
        value = poisoned(rng.choice(documents), rng)
        try:
            read(value)
        except Exception as error:
            if type(error) is not kind.refused:
                raise AssertionError(f"{name}: {error!r} for {value[:3_000]!r}") from error


def test_the_readers_of_every_module_are_fuzzed():
    """Documents are read only by a `Reader`, and every reader is in the table."""
    root = Path(evaluator.__file__).parent
    using, otherwise = set(), set()
    for path in root.rglob("*.py"):
        text, name = path.read_text(), path.relative_to(root).with_suffix("").as_posix()
        if name.startswith("demo/"):
            continue
        if re.search(r"\bReader\(", text):
            using.add(name)
        if re.search(r"json\.loads?\(|json\.Decoder\(|json\.decode\(", text):
            otherwise.add(name)
    assert using == FUZZED
    assert otherwise == OTHERWISE.keys()


READ_BY = "messages/samples outputs/settled state/checkpoint state/origin state/task_rows"
READ_BY += " state/snapshots"
READ_BY += " weights/checksum weights/leader_state weights/weights_record"
READ_BY += " alarms/records alarms/state"
FUZZED = {f"wire/{name}" for name in READ_BY.split()}
FUZZED |= {"wire/reading", "comparison/folder", "adapters/kafka/schemas"}
OTHERWISE = {
    "wire/reading": "the reader itself",
    "wire/messages/strict": "messages, in the table",
    "wire/outputs/sizes": "outputs that this process has just written",
    "wire/outputs/watched_decoder": "names of compiled columns, in test_watched_decoder.py",
    "mapping/schemas": "answers of a known type, in a file of a replay",
    "mapping/avro": "a schema of a bounded depth; any error refuses it",
    "adapters/registry/client": "any error is that of the registry",
    "adapters/minilm": "a model that the operator installs",
    "replay/alarms": "sums that this process has just written",
    "mapping/messages": "foreign records, in tests/mapping",
    "mapping/otlp": "foreign records, in tests/mapping",
    "adapters/claims": "a file of this process; what cannot be read is no claim",
    "adapters/kafka/assignment": "user data of members; what cannot be read is none",
    "replay/parquet": "lines that this process has just written",
    "mapping/members": "keys of foreign records, in tests/mapping",
    "mapping/progress": "metadata of commits, in tests/mapping",
    "mapping/sampling": "messages that this process has just written",
    "replay/shards": "results of a replay, in tests/replay/test_merging.py",
    "replay/inspection": "records that are shown, in tests/cli/test_inspect.py",
    "cli/inspection": "results of a replay, in tests/cli/test_inspect.py",
    "cli/verification": "manifests that were just verified",
    "cli/totals": "totals of this command; any error refuses the file, in tests/cli/test_totals.py",
    "backfill": "results that this process has just written; any error refuses a summary",
    "spark": "a summary that this process has just merged",
}


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":[' * 50_000])
def test_too_deep_nesting_is_refused_before_decoding(deep):
    with pytest.raises(StateDamaged, match=f"nested more than {MAX_NESTING} deep"):
        Reader(object, StateDamaged)(deep)


def test_the_quick_bound_of_nesting_is_never_below_the_depth():
    rng = random.Random(SEED)
    odd = [[], {}, [1], '],[{"', "},{", "[["]
    for _ in range(200):
        value: object = 1
        for _ in range(rng.randrange(50, 70)):
            beside = rng.sample(odd, rng.randrange(3))
            value = [*beside, value] if rng.random() < 0.5 else {"a": beside, "b": value}
        text = json.dumps(value, separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
        assert too_deep(text) == (deepest(value) > MAX_NESTING)


def deepest(value: object) -> int:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(deepest, inner), default=0)
    return 0


def test_a_document_has_a_size_limit():
    reader = Reader(str, StateDamaged, "no text", max_bytes=10)
    assert reader(b'"12345678"') == "12345678"
    with pytest.raises(StateDamaged, match="no text: 11 bytes; at most 10"):
        reader(b'"123456789"')
