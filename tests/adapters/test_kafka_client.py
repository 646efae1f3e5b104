"""What is used of the inside of the Kafka client: another version of it shows here first."""

import asyncio
import importlib
import inspect
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import ConnectionGroup
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from evaluator.adapters.kafka import batches, damaged, election, publishing, sink
from evaluator.adapters.kafka.clients import patient
from evaluator.adapters.kafka.damaged import name_broken_batches
from evaluator.adapters.kafka.membership import tell_at_work
from evaluator.ports import SourceUnusable
from evaluator.wire.records import OutputRecord, kept

NOW_SECONDS = 1_763_690_400.25
RECORDS = [
    OutputRecord(b"key", b"value"),
    OutputRecord(None, b"\x00\xff", (("reason", b"late"), ("offset", b"3"))),
    OutputRecord(b"", b""),
]


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


async def test_a_batch_is_the_one_that_the_public_way_of_the_client_builds(
    make_client, monkeypatch
):
    monkeypatch.setattr(batches.time, "time", lambda: NOW_SECONDS)
    client = make_client()
    public = client.create_batch()
    for key, value, headers in RECORDS:
        timestamp_ms = int(NOW_SECONDS * 1000)
        assert public.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers))
    public.close()
    built = batches.built(client, RECORDS)
    assert built.record_count() == public.record_count() == len(RECORDS)
    assert built.closed() is public.closed() is True
    assert built.size() == public.size()
    assert bytes(built._build()) == bytes(public._build())


async def test_more_than_fits_into_a_batch_of_the_client_is_refused(make_client):
    client = make_client(max_batch_size=1_000)
    with pytest.raises(kafka_errors.RecordListTooLargeError):
        batches.built(client, [OutputRecord(None, b"x" * 400)] * 3)


async def test_a_client_that_asks_for_a_topic_does_not_have_it_made(make_client, monkeypatch):
    inside = importlib.import_module("aiokafka.client")
    monkeypatch.setattr(inside, "MetadataRequest", MetadataRequest)  # as the library has it
    client = patient(make_client()).client
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
    (asked,) = sent
    assert asked.topics == ["rankings"]
    assert asked.allow_auto_topic_creation is False


async def test_the_client_compresses_at_the_level_of_the_sink(make_client, monkeypatch):
    inside = importlib.import_module("aiokafka.record._crecords.default_records")
    monkeypatch.setattr(inside, "zstd_encode", inside.zstd_encode)  # put back after the test
    sink._use_quick_zstd()
    assert inside.zstd_encode.keywords == {"level": sink.ZSTD_LEVEL}
    compressed = []
    encode = inside.zstd_encode
    monkeypatch.setattr(inside, "zstd_encode", lambda raw: compressed.append(raw) or encode(raw))
    batches.built(make_client(compression_type="zstd"), [OutputRecord(None, b"x" * 400)])._build()
    assert len(compressed) == 1


async def test_the_client_sends_heartbeats_where_they_are_listened_to():
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
    election.confirm_by_heartbeats(SimpleNamespace(_coordinator=coordinator), confirmed.append)
    await coordinator._heartbeat_routine()
    assert len(confirmed) == 1


async def test_the_client_says_why_a_transaction_cannot_go_on(make_client):
    client = make_client(transactional_id="id")
    assert publishing._reason(client) is None
    client._txn_manager.set_pid_and_epoch(1, 0)
    await client.begin_transaction()
    assert publishing._reason(client) is None
    assert not client._txn_manager.is_fatal_error()
    client._txn_manager.fatal_error(kafka_errors.ProducerFenced())
    assert isinstance(publishing._reason(client), kafka_errors.ProducerFenced)
    assert client._txn_manager.is_fatal_error()


async def test_what_a_client_leaves_behind_is_ended(make_client):
    client = make_client(transactional_id="id")
    client._txn_manager.set_pid_and_epoch(1, 0)
    await client.begin_transaction()
    batch = client._message_accumulator._append_batch(client.create_batch(), TopicPartition("t", 0))
    publishing._end(client)
    assert isinstance(batch.future.exception(), kafka_errors.ProducerClosed)


async def test_whoever_says_to_be_at_work_is_not_idle():
    subscription = SubscriptionState()
    subscription._last_fetch_ended -= 100
    assert subscription.fetcher_idle_time >= 100
    tell_at_work(SimpleNamespace(_subscription=subscription))
    assert subscription.fetcher_idle_time < 100


def test_the_fetcher_of_the_client_makes_records_as_they_are_made_here():
    """With these arguments, by its global name, and with these members of a batch."""
    name_broken_batches()
    assert fetcher.PartitionRecords is damaged._Records
    parameters = inspect.signature(PartitionRecords.__init__).parameters
    assert list(parameters)[1:4] == ["tp", "records", "aborted_transactions"]
    source = inspect.getsource(PartitionRecords)
    assert "records.has_next()" in source
    assert "records.next_batch()" in source
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset in range(3):
        builder.append(offset, 1_000, b"k", b"v" * offset, [])
    data = bytes(builder.build())
    partition = TopicPartition("shop-rankings", 0)
    rest = ([], 0, None, kept, True, 0)
    whole = fetcher.PartitionRecords(partition, MemoryRecords(data), *rest)
    assert [row.offset for row in whole] == [0, 1, 2]
    broken = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(SourceUnusable, match="--skip shop-rankings-0:0-2`"):
        list(fetcher.PartitionRecords(partition, MemoryRecords(broken), *rest))
    damaged.skip(partition, [(0, 2)])
    records = fetcher.PartitionRecords(partition, MemoryRecords(broken), *rest)
    assert (list(records), records.next_fetch_offset) == ([], 3)
    damaged.skip(partition, [])
