"""The internals of aiokafka in use: a version without one of them fails here."""

import ast
import asyncio
import importlib
import inspect
import os
import time
from io import BytesIO
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, conn
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import create_conn
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator, NoGroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.memory_records import MemoryRecords

from evaluator.adapters.kafka import aiokafka_internals as internals
from evaluator.adapters.kafka import aiokafka_requests as extra
from evaluator.adapters.kafka import sink
from evaluator.adapters.kafka.aiokafka_batches import build_batch
from evaluator.wire.outputs.rows import OutputRows, joined
from evaluator.wire.records import OutputRecord
from tests.tidy.tree import ROOT

NOW_SECONDS = 1_763_690_400.25
DEFAULT_MESSAGE_MAX_BYTES = 1_048_588
RECORDS = [
    OutputRecord(b"key", b"value"),
    OutputRecord(None, b"\x00\xff", (("reason", b"late"), ("offset", b"3"))),
    OutputRecord(b"", b""),
]

# Present parts

METHODS = {
    AIOKafkaClient: {
        *("_metadata_update", "bootstrap", "close", "coordinator_lookup", "ready", "send"),
    },
    BatchBuilder: {"close"},
    ClusterMetadata: {
        *("available_partitions_for_topic", "brokers", "partitions_for_topic", "topics"),
    },
    GroupCoordinator: {"_do_heartbeat", "_send_req", "check_errors", "need_rejoin"},
    NoGroupCoordinator: {"check_errors"},
    MessageAccumulator: {"fail_all"},
    FetchResult: {"_update_position", "check_assignment", "getall", "has_more"},
    MemoryRecords: {"has_next", "next_batch", "size_in_bytes"},
    PartitionRecords: {"__next__", "_unpack_records"},
    Sender: {"sender_task"},
    SubscriptionState: {"fetch_context"},
    TransactionManager: {"is_fatal_error", "wait_for_transaction_end"},
}
ATTRIBUTES = {
    internals._Connection: {"_on_close_cb", "_writer"},
    BatchBuilder: {"_builder", "_closed", "_relative_offset"},
    Fetcher: {"_fetch_task", "_pending_tasks"},
    GroupCoordinator: {
        *("_coordination_task", "_heartbeat_task", "_commit_refresh_task"),
        *("_group_instance_id", "coordinator_id", "generation", "group_id", "member_id"),
    },
    MessageAccumulator: {"_batches", "_pending_batches"},
    MessageBatch: {"_drain_waiter", "future"},
    FetchResult: {"_partition_records", "_topic_partition"},
    PartitionRecords: {
        *("_aborted_producers", "_aborted_transactions", "_records_iterator", "_tp"),
        "next_fetch_offset",
    },
    AIOKafkaAdminClient: {"_client"},
    AIOKafkaConsumer: {"_client", "_coordinator", "_fetcher", "_subscription"},
    AIOKafkaProducer: {"_message_accumulator", "_sender", "_txn_manager", "client"},
    ClusterMetadata: {"controller"},
}


@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_every_method_that_is_used_exists(owner):
    assert {name for name in METHODS[owner] if not hasattr(owner, name)} == set()


@pytest.mark.parametrize("owner", ATTRIBUTES, ids=lambda owner: owner.__name__)
def test_every_attribute_that_is_used_is_assigned(owner):
    """By the source of the class or of a class that it inherits from."""
    assigned = {
        target.attr
        for each in owner.__mro__[:-1]
        if each.__module__.startswith("aiokafka")
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(each.__module__))))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }
    assert ATTRIBUTES[owner] - assigned == set()


def test_the_names_that_are_replaced_are_globals_of_their_modules():
    """So that replacing them has an effect: the modules call them by these names."""
    client = importlib.import_module("aiokafka.client")
    assert "MetadataRequest(" in inspect.getsource(client.AIOKafkaClient._metadata_update)
    assert "= AIOKafkaConnection(" in inspect.getsource(create_conn)
    for name in ("FetchResult", "MemoryRecords", "PartitionRecords"):
        assert f" {name}(" in inspect.getsource(fetcher.Fetcher), name
    assert "is FetchResult" in inspect.getsource(fetcher.Fetcher.fetched_records)


def test_requests_take_the_arguments_that_are_used():
    request = OffsetFetchRequest("group", [("topic", [0])])
    assert request.prepare({OffsetFetchRequest.API_KEY: (0, 3)}).topics == [("topic", [0])]
    parameters = inspect.signature(create_conn).parameters
    assert {"client_id", "request_timeout_ms", "security_protocol", "ssl_context"} <= {*parameters}
    assert {each.name for each in CoordinationType} >= {"GROUP", "TRANSACTION"}


def test_metadata_in_version_10_is_encoded_and_decoded():
    request = extra.TopicsRequest(["a", "b"]).prepare({3: (0, 12)})
    assert (request.API_VERSION, request.FLEXIBLE_VERSION) == (10, True)
    no_id = bytes(16)
    assert request.encode() == b"\x03" + no_id + b"\x02a\x00" + no_id + b"\x02b\x00" + bytes(4)
    partition = b"\x00\x00" + bytes(4) * 3 + b"\x01\x01\x01\x00"
    topic = b"\x00\x00\x02a" + bytes(range(16)) + b"\x00\x02" + partition + bytes(4) + b"\x00"
    response = bytes(4) + b"\x01\x03id" + bytes(4) + b"\x02" + topic + bytes(4) + b"\x00"
    (found,) = extra._TopicsResponse.decode(BytesIO(response)).to_object()["topics"]
    assert found["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert (found["topic"], found["error_code"], len(found["partitions"])) == ("a", 0, 1)


def test_a_broker_without_version_10_gets_a_request_of_another_version():
    with pytest.raises(NotImplementedError):
        extra.TopicsRequest(["a"]).prepare({3: (0, 9)})


def test_a_heartbeat_has_the_instance_id_unless_the_broker_is_too_old():
    heartbeat = extra.NamedHeartbeat("group", 7, "member", "pod-0")
    fields = b"\x00\x05group" + bytes([0, 0, 0, 7]) + b"\x00\x06member"
    assert heartbeat.prepare({12: (0, 4)}).encode() == fields + b"\x00\x05pod-0"
    assert heartbeat.prepare({12: (0, 2)}).encode() == fields
    response = heartbeat.prepare({12: (0, 4)}).RESPONSE_TYPE.decode(BytesIO(bytes(4) + b"\x00R"))
    assert response.error_code == 82


def test_a_member_is_removed_by_its_instance_id_only():
    request = extra.LeaveRequest("group", "pod-0").prepare({13: (0, 5)})
    one = bytes([0, 0, 0, 1])
    assert request.encode() == b"\x00\x05group" + one + b"\x00\x00" + b"\x00\x05pod-0"
    response = bytes(4) + bytes(2) + one + b"\x00\x00" + b"\x00\x05pod-0" + b"\x00\x19"
    assert request.RESPONSE_TYPE.decode(BytesIO(response)).members == [("", "pod-0", 25)]


# How it works


@pytest.fixture
async def make_client():
    """Makes producers that never connect."""
    made = []

    def make(**options):
        made.append(AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", **options))
        return made[-1]

    yield make
    for client in made:
        await client.stop()


async def test_a_batch_equals_that_of_the_public_api_of_the_client(make_client, monkeypatch):
    monkeypatch.setattr(internals.time, "time", lambda: NOW_SECONDS)
    client = make_client()
    public = client.create_batch()
    for key, value, headers in RECORDS:
        timestamp_ms = int(NOW_SECONDS * 1000)
        assert public.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers))
    public.close()
    built = build_batch(client, RECORDS)
    assert built.record_count() == public.record_count() == len(RECORDS)
    assert built.closed() is public.closed() is True
    assert built.size() == public.size()
    assert bytes(built._build()) == bytes(public._build())


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
@pytest.mark.parametrize("headers", [(), (("generation", b"7"), ("fingerprint", b"\xff" * 200))])
async def test_rows_become_the_same_batch_as_their_records(
    make_client, monkeypatch, compression, headers
):
    monkeypatch.setattr(time, "time", lambda: NOW_SECONDS)
    client = make_client(compression_type=compression, max_batch_size=1 << 20)
    internals.prepare(client, pause_seconds=0.0)
    sizes = [0, 1, 62, 63, 64, 8_190, 8_191, 8_192, *range(100, 200), 70_000]
    rows = OutputRows.of([OutputRecord(b"k" * (n % 70), b"v" * n) for n in sizes])
    rows = joined([rows, OutputRows.of([OutputRecord(None, b"{}")])])
    rows = OutputRows(rows.text, rows.spans, headers)
    tiny = [rows[:1], rows[-1:]]  # the compiled builder compresses also what that makes larger
    for some in (rows, rows[3:], *([] if compression else tiny)):
        ready, built = (build_batch(client, each) for each in (some, list(some)))
        assert type(ready) is not type(built)
        assert (ready.record_count(), ready.size()) == (len(some), built.size())
        for batch in (ready, built):
            batch._set_producer_state(5, 6, 7)
        assert bytes(ready._build()) == bytes(built._build())
        assert ready.closed()


@pytest.mark.parametrize("kind", [list, OutputRows.of])
async def test_records_that_exceed_a_batch_of_the_client_are_refused(make_client, kind):
    client = make_client(max_batch_size=1_000)
    with pytest.raises(kafka_errors.RecordListTooLargeError):
        build_batch(client, kind([OutputRecord(None, b"x" * 400)] * 3))
    assert build_batch(client, kind([OutputRecord(None, b"x" * 4_000)]))


@pytest.mark.parametrize("kind", [list, OutputRows.of])
async def test_a_broker_takes_the_largest_batch_by_default(make_client, kind):
    client = make_client(max_batch_size=sink.BATCH_BYTES, compression_type="zstd")
    records = [OutputRecord(os.urandom(70), os.urandom(n), (("n", b"7"),)) for n in range(1, 2_000)]
    emission = sink.Emission(asyncio.get_running_loop().create_future(), 0)
    for batch in sink._batches_of(kind(records), emission):
        assert len(build_batch(client, batch.records)._build()) <= DEFAULT_MESSAGE_MAX_BYTES


async def test_requesting_a_topic_does_not_create_it(make_client, monkeypatch):
    library = importlib.import_module("aiokafka.client")
    monkeypatch.setattr(library, "MetadataRequest", MetadataRequest)  # as the library has it
    producer = make_client()
    internals.prepare(producer, pause_seconds=0.0)
    client = internals.client_of(producer)
    sent = []

    class Connection:
        async def send(self, request):
            sent.append(request.prepare({MetadataRequest.API_KEY: (0, 5)}))
            raise kafka_errors.KafkaConnectionError("enough")

    async def connected(node_id):
        return Connection()

    monkeypatch.setattr(client, "_get_conn", connected)
    client._conns["bootstrap", ConnectionGroup.DEFAULT] = None
    assert not await client._metadata_update(client.cluster, ["rankings"])
    client._conns.clear()
    (sent_request,) = sent
    assert sent_request.topics == ["rankings"]
    assert sent_request.allow_auto_topic_creation is False


async def test_the_client_compresses_at_the_configured_level(make_client, monkeypatch):
    library = importlib.import_module("aiokafka.record._crecords.default_records")
    monkeypatch.setattr(library, "zstd_encode", library.zstd_encode)  # put back after the test
    internals._patch_library()
    assert library.zstd_encode.keywords == {"level": internals.ZSTD_LEVEL}
    compressed = []
    encode = library.zstd_encode
    monkeypatch.setattr(library, "zstd_encode", lambda raw: compressed.append(raw) or encode(raw))
    client = make_client(compression_type="zstd")
    build_batch(client, [OutputRecord(None, b"x" * 400)])._build()
    assert len(compressed) == 1


async def test_a_client_that_was_not_started_has_no_background_tasks(make_client):
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:9")
    assert internals.background_tasks(make_client()) == internals.background_tasks(consumer) == []
    await consumer.stop()


async def test_answered_heartbeats_are_confirmed():
    coordinator = object.__new__(GroupCoordinator)  # without a client that would connect
    coordinator.member_id = "member"
    coordinator._heartbeat_interval_ms = coordinator._retry_backoff_ms = 1
    coordinator._session_timeout_ms, coordinator._max_poll_interval = 10_000, 300.0
    coordinator._subscription = SimpleNamespace(fetcher_idle_time=0.0)
    answers = iter([False, True])
    confirmed = []

    async def known():
        return True

    async def beat():
        try:
            return next(answers)
        except StopIteration:
            raise asyncio.CancelledError from None

    coordinator.ensure_coordinator_known, coordinator._do_heartbeat = known, beat
    assert inspect.iscoroutinefunction(GroupCoordinator._do_heartbeat)
    consumer = SimpleNamespace(_coordinator=coordinator)
    internals.call_after_heartbeats(consumer, confirmed.append)
    await coordinator._heartbeat_routine()
    assert len(confirmed) == 1


async def test_a_connection_may_be_closed_twice_with_every_python():
    aborted = []

    class Transport:
        def abort(self):  # as asyncio of Python 3.11.2, after a second close over TLS
            aborted.append(self)
            raise AttributeError("'NoneType' object has no attribute '_abort'")

    connection = conn.AIOKafkaConnection("localhost", 9092)
    connection._writer = SimpleNamespace(transport=Transport())
    assert connection.close() is None
    assert len(aborted) == 1


async def test_the_first_error_of_a_transaction_is_found(make_client):
    client = make_client(transactional_id="id")
    assert internals.transaction_error(client) is None
    client._txn_manager.set_pid_and_epoch(1, 0)
    await client.begin_transaction()
    assert internals.transaction_error(client) is None
    assert not internals.has_fatal_error(client)
    client._txn_manager.fatal_error(kafka_errors.ProducerFenced())
    assert isinstance(internals.transaction_error(client), kafka_errors.ProducerFenced)
    assert internals.has_fatal_error(client)


async def test_the_batches_of_a_closed_producer_fail(make_client):
    client = make_client(transactional_id="id")
    client._txn_manager.set_pid_and_epoch(1, 0)
    await client.begin_transaction()
    batch = client._message_accumulator._append_batch(client.create_batch(), TopicPartition("t", 0))
    discarded = []
    internals.fail_batches(client, lambda each: discarded.append((each, each.exception())))
    assert isinstance(batch.future.exception(), kafka_errors.ProducerClosed)
    await asyncio.sleep(0)
    assert batch.future in dict(discarded)


async def test_a_consumer_that_is_marked_as_polled_is_not_idle():
    subscription = SubscriptionState()
    subscription._last_fetch_ended -= 100
    assert subscription.fetcher_idle_time >= 100
    internals.mark_polled(SimpleNamespace(_subscription=subscription))
    assert subscription.fetcher_idle_time < 100


# Nowhere else

PUBLIC = {
    *("aiokafka", "aiokafka.admin", "aiokafka.admin.config_resource", "aiokafka.helpers"),
    "aiokafka.partitioner",
}
ROOM = ROOT / "evaluator" / "adapters" / "kafka"
INSIDE = sorted(ROOM.glob("aiokafka_*.py"))
OTHERS = sorted(set(ROOM.glob("*.py")) - set(INSIDE))


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_no_other_module_depends_on_aiokafka_internals(path):
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiokafka"):
            found += [] if node.module in PUBLIC else [f"import of {node.module}"]
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.startswith("aiokafka.")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            own |= isinstance(node.value, ast.Call)  # super()._method
            found += [] if own or node.attr.startswith("__") else [f"attribute {node.attr}"]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("aiokafka."):
            found.append(f"name {node.value}")
    assert found == []


def test_every_part_has_a_link_to_its_source():
    text = "\n".join(path.read_text("utf-8") for path in INSIDE)
    undocumented = [
        name
        for before, name in zip(text.splitlines(), [*text.splitlines()[1:], ""], strict=True)
        if name.startswith(("def ", "async def "))
        and not before.startswith("# https://github.com/")
    ]
    assert [name.split("(")[0] for name in undocumented] == [
        "def columns_of",
        "def _records_of_fetch",
        "def prepare",  # calls the others
        "async def fetch_topics",
        "def _fields",
    ]
