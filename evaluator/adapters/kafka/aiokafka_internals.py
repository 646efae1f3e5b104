"""Everything that depends on internals of aiokafka: private attributes, patches, custom requests.

The modules `aiokafka_batches`, `aiokafka_fetches`, `aiokafka_frames` and `aiokafka_requests` belong
to it. pyproject.toml bounds the version of aiokafka. Each part links the source that it depends on,
and tests/adapters/test_aiokafka_internals.py fails if the installed version lacks it.
"""

import asyncio
import contextlib
import functools
import importlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, conn
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.codec import zstd_encode
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record import default_records

from evaluator.adapters.kafka.aiokafka_fetches import replace_unpacking
from evaluator.adapters.kafka.aiokafka_frames import FrameConnection, FrameProtocol
from evaluator.adapters.kafka.aiokafka_requests import (
    LeaveRequest,
    MembersRequest,
    NamedHeartbeat,
    TopicsRequest,
)
from evaluator.adapters.kafka.errors import raise_for

ZSTD_LEVEL: Final = 1

Client: TypeAlias = AIOKafkaConsumer | AIOKafkaProducer
BrokerClient: TypeAlias = AIOKafkaClient
RangeAssignor = RangePartitionAssignor
MemberAssignment = ConsumerProtocolMemberAssignment
MemberMetadata = ConsumerProtocolMemberMetadata

# Clients


def prepare(client: Client, *, pause_seconds: float) -> None:
    """Patches aiokafka for the whole process, and *client* to pause between metadata requests."""
    _patch_library()
    _pause_between_updates(client_of(client), pause_seconds)


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/consumer.py#L298
def client_of(client: Client) -> Any:
    """The connections of a consumer or producer."""
    return client.client if isinstance(client, AIOKafkaProducer) else client._client


# https://github.com/aio-libs/aiokafka/issues/659
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/sender.py#L91
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/fetcher.py#L431
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L272
def background_tasks(client: Client) -> "list[asyncio.Future[Any]]":
    """The running tasks of a client. Its `stop` has no timeout and may leave them."""
    if isinstance(client, AIOKafkaProducer):
        tasks = [client._sender.sender_task]
    else:
        coordinator, fetcher = client._coordinator, client._fetcher
        tasks = [
            getattr(coordinator, name, None)  # a consumer without a group has none of them
            for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task")
        ]
        tasks += [getattr(fetcher, "_fetch_task", None), *getattr(fetcher, "_pending_tasks", ())]
    return [task for task in tasks if task is not None and not task.done()]


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/client.py#L286
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/record/_crecords/default_records.pyx
# https://github.com/aio-libs/aiokafka/pull/1121
def _patch_library() -> None:
    """Replaces names in modules of aiokafka, which has no settings for this.

    Metadata requests do not create topics, which would have the default partition count and
    cleanup policy of the broker. Fetches are received by aiokafka_frames.py and unpacked by
    aiokafka_fetches.py. Producers compress at ZSTD_LEVEL: on evaluations level 1 takes 1.6 us a
    record and leaves 22 %, the default level 3 takes 2.5 us and leaves 24 %; snappy takes 1.6 us
    and leaves 42 %.
    """
    client: Any = importlib.import_module("aiokafka.client")
    client.MetadataRequest = functools.partial(MetadataRequest, allow_auto_topic_creation=False)
    conn.AIOKafkaProtocol = FrameProtocol
    replace_unpacking()
    with contextlib.suppress(ImportError):  # aiokafka was built without its extension
        builder: Any = importlib.import_module("aiokafka.record._crecords.default_records")
        builder.zstd_encode = functools.partial(zstd_encode, level=ZSTD_LEVEL)
    default_records.zstd_encode = functools.partial(zstd_encode, level=ZSTD_LEVEL)


# https://github.com/aio-libs/aiokafka/issues/1155
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/client.py#L284
def _pause_between_updates(client: Any, seconds: float) -> None:
    """Makes a client pause after a metadata request that did not find every leader.

    Otherwise it repeats the request at once while a broker is unavailable, and keeps one core busy.
    """
    update = client._metadata_update

    async def update_and_pause(cluster: Any, topics: Iterable[str] | None) -> bool:
        updated: bool = await update(cluster, topics)
        if not updated or any(
            cluster.available_partitions_for_topic(topic) != cluster.partitions_for_topic(topic)
            for topic in cluster.topics()
        ):
            await asyncio.sleep(seconds)
        return updated

    client._metadata_update = update_and_pause


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/conn.py#L470
class _Connection(FrameConnection):
    """Discards unsent bytes when it is closed, because a broker may never read them.

    A connection for the first metadata has no owner that closes it, so a cancelled request does.
    """

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        answer: Awaitable[Any] = super().send(request, expect_response)
        return answer if self._on_close_cb is not None else self._answer(answer)

    async def _answer(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self, *arguments: Any, **named: Any) -> "asyncio.Future[None] | None":
        writer = self._writer
        closed: asyncio.Future[None] | None = super().close(*arguments, **named)
        if writer is not None:
            with contextlib.suppress(AttributeError):  # of Python 3.11.2 over TLS, the second time
                writer.transport.abort()
        return closed


conn.AIOKafkaConnection = _Connection  # of all clients in this process

# Members of a group


# https://github.com/aio-libs/aiokafka/issues/848
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/subscription_state.py#L291
def mark_polled(consumer: AIOKafkaConsumer) -> None:
    """Resets the time since the last poll of a consumer.

    After max_poll_interval_ms a consumer leaves its group until it is polled again.
    """
    with consumer._subscription.fetch_context():
        pass


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L321
def raise_group_errors(consumer: AIOKafkaConsumer) -> None:
    """Raises an error of the group, as `getmany` does if it reads partitions."""
    consumer._coordinator.check_errors()


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L799
def call_after_heartbeats(consumer: AIOKafkaConsumer, confirmed: Callable[[float], None]) -> None:
    """Calls *confirmed* with the monotonic time at which each answered heartbeat was sent."""
    coordinator = consumer._coordinator
    send = coordinator._do_heartbeat

    async def send_and_confirm() -> bool:
        at = time.monotonic()
        answered: bool = await send()
        if answered:
            confirmed(at)
        return answered

    coordinator._do_heartbeat = send_and_confirm


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L538
def request_rejoin(consumer: AIOKafkaConsumer) -> None:
    """Makes a consumer join its group again."""
    consumer._coordinator.request_rejoin()


_FENCED_INSTANCE_ID: Final = 82
_OTHER_GENERATION, _UNKNOWN_MEMBER_ID = 22, 25
MEMBER_IDS: Final = 100
"""Maximum number of member ids that a member remembers as its own."""


# https://cwiki.apache.org/confluence/display/KAFKA/KIP-345
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L299
def call_when_fenced(
    consumer: AIOKafkaConsumer, instance_id: str, fenced: Callable[[], None]
) -> None:
    """Calls *fenced* when a later member of the group has the instance id of *consumer*.

    Heartbeats and commits of aiokafka do not contain the instance id, so the broker would only not
    recognise the member id, and the earlier member would join again and replace the later one.
    Heartbeats are sent with it, and one more before the answer to a refused commit is returned. A
    fenced member does not join again.

    A broker that fails while the group assigns forgets the member ids of that assignment: it then
    fences a member by an earlier member id of the same process, which joins again.
    """
    coordinator = consumer._coordinator
    send = coordinator._send_req
    member_ids: deque[str] = deque(maxlen=MEMBER_IDS)
    is_fenced = False

    async def send_named(request: Any) -> Any:
        nonlocal is_fenced
        if is_fenced and isinstance(request, JoinGroupRequest):
            raise kafka_errors.KafkaError(f"a later member has the instance id {instance_id}")
        member_id = coordinator.member_id
        member = coordinator.group_id, coordinator.generation, member_id
        heartbeat = NamedHeartbeat(*member, instance_id)
        response = await send(heartbeat if isinstance(request, HeartbeatRequest) else request)
        code = getattr(response, "error_code", 0)
        if isinstance(request, JoinGroupRequest) and not code:
            member_ids.append(response.member_id)
        is_refused = isinstance(request, OffsetCommitRequest) and _is_refused(response)
        # Without a member id, or with another one by now, it is already joining again.
        if is_refused and member_id and member_id == coordinator.member_id:
            code = (await send(heartbeat)).error_code
        if code == _FENCED_INSTANCE_ID:
            if await _has_member(send, coordinator.group_id, instance_id, member_ids):
                is_fenced = True
                fenced()
            elif not is_refused:
                response.error_code = _UNKNOWN_MEMBER_ID
        return response

    coordinator._send_req = send_named


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/admin.py#L519
async def _has_member(
    send: Callable[[Any], Awaitable[Any]], group_id: str, instance_id: str, own: Container[str]
) -> bool:
    """Whether a group has a member with an instance id whose member id is none of its *own*."""
    try:
        response = await send(MembersRequest(group_id))
        [(code, *_, members, _operations)] = response.groups
        raise_for(code)
    except (NotImplementedError, kafka_errors.GroupAuthorizationFailedError):
        return True  # the broker does not support the version, or the login may not see members
    return any(name == instance_id and each not in own for each, name, *_ in members)


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L1049
def _is_refused(response: Any) -> bool:
    """Whether the group has no member with the member id and generation of a commit."""
    codes = {code for _, partitions in response.topics for _, code in partitions}
    return bool(codes & {_OTHER_GENERATION, _UNKNOWN_MEMBER_ID})


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/group.py#L376
async def remove_member(client: BrokerClient, node: int, group_id: str, instance_id: str) -> None:
    """Removes the member with an instance id from a group. Raises UnknownMemberIdError."""
    response = await client.send(node, LeaveRequest(group_id, instance_id))
    raise_for(response.error_code)
    for *_, code in response.members:
        raise_for(code)


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/admin.py#L578
async def fetch_groups(client: BrokerClient, node: int) -> list[str]:
    """The groups of one broker that this user may describe."""
    response = await client.send(node, ListGroupsRequest())
    raise_for(response.error_code)
    return [group for group, _ in response.groups]


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/admin.py#L519
async def fetch_members(client: BrokerClient, node: int, group_id: str) -> list[tuple[str, bytes]]:
    """Of each member of a group its instance id, empty for one without, and its subscription.

    Subscriptions are empty while the group assigns.
    """
    response = await client.send(node, MembersRequest(group_id))
    found = []
    for code, *_, members, _operations in response.groups:
        raise_for(code)
        found += [(instance_id or "", sent) for _, instance_id, _, _, sent, _ in members]
    return found


# Transactions


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/transaction_manager.py#L233
def has_fatal_error(producer: AIOKafkaProducer) -> bool:
    """Whether a producer can begin no further transaction."""
    return bool(producer._txn_manager.is_fatal_error())


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/transaction_manager.py#L236
def transaction_error(producer: AIOKafkaProducer) -> BaseException | None:
    """The first error of the current transaction; later ones only report that it has failed."""
    ending = producer._txn_manager.wait_for_transaction_end()
    if ending is None or not ending.done() or ending.cancelled():
        return None
    error: BaseException | None = ending.exception()
    return error


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/message_accumulator.py#L375
def fail_batches(producer: AIOKafkaProducer, discard: Callable[[Any], None]) -> None:
    """Fails the unsent batches of a closed producer; *discard* is called with their futures."""
    accumulator = producer._message_accumulator
    waiting = itertools.chain(accumulator._pending_batches, *accumulator._batches.values())
    for batch in list(waiting):
        batch.future.add_done_callback(discard)
        batch._drain_waiter.add_done_callback(discard)
    accumulator.fail_all(kafka_errors.ProducerClosed())


# Requests


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/admin/client.py#L170
def has_controller(admin: AIOKafkaAdminClient) -> bool:
    """Whether the metadata of an administration client names a controller."""
    return admin._client.cluster.controller is not None


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/conn.py#L56
async def connect_once(host: str, port: int, arguments: Mapping[str, Any]) -> None:
    """Connects, logs in and sends one request, because a missing login fails only then."""
    connection = await conn.create_conn(host, port, **arguments)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        await connection.close()


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/client.py#L524
async def find_coordinator(
    client: BrokerClient, kind: Literal["GROUP", "TRANSACTION"], name: str
) -> int:
    """The broker that coordinates a group or a transactional id."""
    return int(await client.coordinator_lookup(CoordinationType[kind], name))


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/commit.py
async def fetch_offsets(
    client: BrokerClient, node: int, group_id: str, partitions: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, int, str]]:
    """The committed offsets and metadata of a group; partitions without a commit are missing."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    response = await client.send(node, OffsetFetchRequest(group_id, list(by_topic.items())))
    raise_for(getattr(response, "error_code", 0))  # of the group, from version 2 on
    found = []
    for topic, rows in response.topics:
        for partition, offset, metadata, code in rows:
            raise_for(code)
            if offset >= 0:
                found.append((TopicPartition(topic, partition), offset, metadata or ""))
    return found


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/metadata.py
async def fetch_cluster_id(client: BrokerClient, node: int) -> str:
    """The id of the cluster; empty if the brokers do not provide one."""
    request = MetadataRequest([], allow_auto_topic_creation=False)
    response = await client.send(node, request)
    return str(response.to_object().get("cluster_id") or "")


async def fetch_topics(client: BrokerClient, node: int, names: Sequence[str]) -> Any:
    """The topics of a metadata response, with `topic_id` from brokers of version 2.8 or later."""
    try:
        response = await client.send(node, TopicsRequest(names))
    except NotImplementedError:  # the broker does not support the version
        request = MetadataRequest(list(names), allow_auto_topic_creation=False)
        response = await client.send(node, request)
    return response.to_object()["topics"]
