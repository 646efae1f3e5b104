"""Requests in versions that aiokafka lacks; part of aiokafka_internals.py."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

from aiokafka.protocol import types
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import HeartbeatRequest_v1, LeaveGroupRequest

_NO_ID: Final = bytes(16)
_STRING: Final = types.String("utf-8")
_TEXT: Final = types.CompactString("utf-8")
_NODES: Final = types.CompactArray(types.Int32)


class _Uuid:
    """A UUID on the wire, decoded to the text that the tools of Kafka print."""

    repr = staticmethod(repr)

    @staticmethod
    def decode(data: BytesIO) -> str | None:
        value = data.read(16)
        return None if value == _NO_ID else base64.urlsafe_b64encode(value).decode().rstrip("=")

    @staticmethod
    def encode(value: None) -> bytes:
        del value  # topics are requested by name
        return _NO_ID


def _fields(names: str, *kinds: Any) -> list[tuple[str, Any]]:
    return list(zip(names.split(), kinds, strict=True))


_TAGS: Final = ("tags", types.TaggedFields)  # of every struct in flexible versions
_BROKER: Final = _fields("node_id host port rack", types.Int32, _TEXT, types.Int32, _TEXT)
_PARTITION: Final = _fields(
    "error_code partition leader leader_epoch replicas isr offline_replicas",
    *(types.Int16, types.Int32, types.Int32, types.Int32, _NODES, _NODES, _NODES),
)
_TOPIC: Final = _fields(
    "error_code topic topic_id is_internal partitions topic_authorized_operations",
    *(types.Int16, _TEXT, _Uuid, types.Boolean),
    *(types.CompactArray(*_PARTITION, _TAGS), types.Int32),
)
_RESPONSE: Final = _fields(
    "throttle_time_ms brokers cluster_id controller_id topics cluster_authorized_operations",
    *(types.Int32, types.CompactArray(*_BROKER, _TAGS), _TEXT, types.Int32),
    *(types.CompactArray(*_TOPIC, _TAGS), types.Int32),
)
_REQUEST: Final = _fields(
    "topics allow_auto_topic_creation with_cluster_operations with_topic_operations",
    types.CompactArray(*_fields("topic_id topic", _Uuid, _TEXT), _TAGS),
    *(types.Boolean, types.Boolean, types.Boolean),
)


# Metadata in version 10 has topic ids; aiokafka has versions up to 5.
# https://kafka.apache.org/protocol.html#The_Messages_Metadata
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/api.py#L71
class _TopicsResponse(Response):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION, SCHEMA = 3, 10, types.Schema(*_RESPONSE, _TAGS)


class _TopicsStruct(RequestStruct):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION, SCHEMA = 3, 10, types.Schema(*_REQUEST, _TAGS)
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TopicsResponse


class TopicsRequest(Request[_TopicsStruct]):  # type: ignore[misc] # untyped in the library
    """Requests topics by name. Raises NotImplementedError for brokers without this version."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """The request on the wire."""
        return request_struct_class([(None, name, {}) for name in self._topics], *[False] * 3, {})


# Heartbeats have the instance id from version 3 on, and members leave by it from version 3 on.
# https://kafka.apache.org/protocol.html#The_Messages_Heartbeat
# https://kafka.apache.org/protocol.html#The_Messages_LeaveGroup
class _HeartbeatResponse(Response):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION = 12, 3
    SCHEMA = HeartbeatRequest_v1.RESPONSE_TYPE.SCHEMA


class _HeartbeatStruct(RequestStruct):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION, RESPONSE_TYPE = 12, 3, _HeartbeatResponse
    SCHEMA = types.Schema(
        *_fields("group generation_id member_id", _STRING, types.Int32, _STRING),
        ("group_instance_id", _STRING),
    )


class NamedHeartbeat(Request[HeartbeatRequest_v1 | _HeartbeatStruct]):  # type: ignore[misc] # untyped in the library
    """A heartbeat with the instance id; without it for brokers before 2.3."""

    API_KEY = 12

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def build(self, request_struct_class: Any) -> Any:
        """The request on the wire."""
        return request_struct_class(*self._fields[: len(request_struct_class.SCHEMA.fields)])


_MEMBER: Final = _fields(
    "member_id group_instance_id client_id client_host member_metadata member_assignment",
    *(_STRING, _STRING, _STRING, _STRING, types.Bytes, types.Bytes),
)
_GROUP: Final = _fields(
    "error_code group state protocol_type protocol members authorized_operations",
    *(types.Int16, _STRING, _STRING, _STRING, _STRING, types.Array(*_MEMBER), types.Int32),
)


class _MembersResponse(Response):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION = 15, 4
    SCHEMA = types.Schema(("throttle_time_ms", types.Int32), ("groups", types.Array(*_GROUP)))


class _MembersStruct(RequestStruct):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION, RESPONSE_TYPE = 15, 4, _MembersResponse
    SCHEMA = types.Schema(("groups", types.Array(_STRING)), ("with_operations", types.Boolean))


class MembersRequest(Request[_MembersStruct]):  # type: ignore[misc] # untyped in the library
    """DescribeGroups in version 4 has instance ids; aiokafka has versions up to 3."""

    API_KEY = 15

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id

    def build(self, request_struct_class: Any) -> Any:
        """The request on the wire."""
        return request_struct_class([self._group_id], False)


_LEAVING: Final = _fields("member_id group_instance_id", _STRING, _STRING)


class _LeaveResponse(Response):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION = 13, 3
    SCHEMA = types.Schema(
        *_fields("throttle_time_ms error_code", types.Int32, types.Int16),
        ("members", types.Array(*_LEAVING, ("error_code", types.Int16))),
    )


class _LeaveStruct(RequestStruct):  # type: ignore[misc] # untyped in the library
    API_KEY, API_VERSION, RESPONSE_TYPE = 13, 3, _LeaveResponse
    SCHEMA = types.Schema(("group", _STRING), ("members", types.Array(*_LEAVING)))


class LeaveRequest(Request[_LeaveStruct]):  # type: ignore[misc] # untyped in the library
    """Removes a member by its instance id alone: its member id is empty, as for any member."""

    API_KEY = 13

    def __init__(self, group_id: str, instance_id: str) -> None:
        self._group_id, self._instance_id = group_id, instance_id

    def build(self, request_struct_class: Any) -> Any:
        """The request on the wire."""
        return request_struct_class(self._group_id, [("", self._instance_id)])


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py#L355
async def leave_while_joining(client: Any) -> None:
    """Leaves the group of a consumer whose join has no answer; other clients leave when they stop.

    The broker answers a join when all members have joined, so a dead one delays the answer until
    its session ends, and with it all other answers on this connection. The consumer's connection
    for fetches is free.
    """
    coordinator: Any = getattr(client, "_coordinator", None)
    member_id = getattr(coordinator, "member_id", "")
    if not member_id or coordinator._group_instance_id is not None:
        return
    if coordinator.need_rejoin(client._subscription.subscription):
        request = LeaveGroupRequest(coordinator.group_id, member_id)
        await client._client.send(coordinator.coordinator_id, request)
