"""The request Metadata in version 10, which names topics by id; the library has up to version 5."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_NO_ID = bytes(16)


class Topic(NamedTuple):
    """A topic that exists. `topic_id` is None where the brokers know of no ids (before 2.8)."""

    n_partitions: int
    topic_id: str | None


class _Uuid:
    """Sixteen bytes, as the text that Kafka's own tools print."""

    @classmethod
    def decode(cls, data: BytesIO) -> str | None:
        value = data.read(16)
        return None if value == _NO_ID else base64.urlsafe_b64encode(value).decode().rstrip("=")

    @classmethod
    def encode(cls, value: None) -> bytes:
        del value  # topics are asked for by name
        return _NO_ID

    @classmethod
    def repr(cls, value: str | None) -> str:
        return repr(value)


_TAGS = ("tags", TaggedFields)


class _TopicsResponse(Response):  # type: ignore[misc] # untyped in the library
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                _TAGS,
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("topic_authorized_operations", Int32),
                _TAGS,
            ),
        ),
        ("cluster_authorized_operations", Int32),
        _TAGS,
    )


class _TopicsStruct(RequestStruct):  # type: ignore[misc] # untyped in the library
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TopicsResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", CompactString("utf-8")), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class TopicsRequest(Request[_TopicsStruct]):  # type: ignore[misc] # untyped in the library
    """Asks for topics by name, and makes none. Raises NotImplementedError where it is sent to a
    broker that does not know this version.
    """

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """The request for the wire."""
        named: list[Any] = [(None, topic, {}) for topic in self._topics]
        return request_struct_class(named, False, False, False, {})
