"""Members with names: the earlier of two with one name ends, and members can be removed."""

import contextlib
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from evaluator.adapters.kafka import aiokafka_internals as internals
from evaluator.adapters.kafka.clients import Requests
from evaluator.ports import SourceUnusable

VERSIONS = {8: (0, 3), 11: (0, 5), 12: (0, 4)}
"""Versions of commits, joins and heartbeats that the broker has."""
COMMIT, JOIN, HEARTBEAT = VERSIONS


class Member:
    """A coordinator without a client, and a broker that answers with these codes."""

    def __init__(self, *, commit=0, heartbeat=0, join=0):
        self.sent, self.n_fenced = [], 0
        self.codes = {COMMIT: commit, HEARTBEAT: heartbeat, JOIN: join}
        self.coordinator = object.__new__(GroupCoordinator)
        self.coordinator.group_id, self.coordinator.coordinator_id = "group", 1
        self.coordinator.generation, self.coordinator.member_id = 7, "member"
        self.coordinator._group_instance_id = "pod-0"
        self.coordinator._rebalance_timeout_ms = 1_000
        self.coordinator._send_req = self.send
        self.coordinator.request_rejoin = lambda: None
        consumer = SimpleNamespace(_coordinator=self.coordinator)
        internals.call_when_fenced(consumer, "pod-0", self.fenced)

    def fenced(self):
        self.n_fenced += 1

    @property
    def kinds(self):
        return [each.API_KEY for each in self.sent]

    async def send(self, request):
        self.sent.append(request.prepare(VERSIONS))
        code = self.codes[request.API_KEY]
        return SimpleNamespace(error_code=code, topics=[("topic", [(0, 0), (1, code)])])

    async def commit(self):
        """As the library: its error, or None."""
        offsets = {TopicPartition("topic", n): OffsetAndMetadata(5, "") for n in (0, 1)}
        try:
            await self.coordinator._do_commit_offsets(None, offsets)
        except kafka_errors.KafkaError as error:
            return type(error)

    async def beat(self):
        with contextlib.suppress(kafka_errors.KafkaError):
            await self.coordinator._do_heartbeat()

    async def join(self):
        """As the library: None if there is no assignment and it tries again."""
        subscription = SimpleNamespace(topics=["topic"], active=True)
        times = {"session_timeout_ms": 1_000, "retry_backoff_ms": 0}
        joining = CoordinatorGroupRebalance(
            self.coordinator, "group", 1, subscription, [RangePartitionAssignor], **times
        )
        return await joining.perform_group_join()


@pytest.mark.parametrize("code", [0, 25, 82])
async def test_a_member_is_fenced_by_one_error_code_alone(code):
    member = Member(heartbeat=code)
    await member.beat()
    assert [each.group_instance_id for each in member.sent] == ["pod-0"]
    assert member.n_fenced == (code == 82)


@pytest.mark.parametrize(
    "refused", [kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError]
)
async def test_a_member_whose_commit_is_refused_asks_whether_it_was_replaced(refused):
    """Before the library forgets its member id: then it would replace the later member."""
    member = Member(commit=refused.errno, heartbeat=82, join=25)
    assert await member.commit() is refused
    assert member.kinds == [COMMIT, HEARTBEAT]
    asked = member.sent[1]
    assert (asked.generation_id, asked.member_id, asked.group_instance_id) == (7, "member", "pod-0")
    assert member.n_fenced == 1
    assert await member.join() is None
    assert JOIN not in member.kinds


@pytest.mark.parametrize("code", [22, 25])
async def test_a_member_whose_session_has_ended_joins_again(code):
    """If no other process has its name, the broker does not fence it."""
    member = Member(commit=25, heartbeat=code, join=25)
    assert await member.commit() is kafka_errors.UnknownMemberIdError
    assert member.n_fenced == 0
    assert await member.join() is None
    assert member.kinds == [COMMIT, HEARTBEAT, JOIN]
    assert (member.sent[-1].member_id, member.sent[-1].group_instance_id) == ("", "pod-0")


@pytest.mark.parametrize("code", [0, 27])
async def test_commits_that_are_not_refused_ask_nothing(code):
    member = Member(commit=code, heartbeat=82)
    await member.commit()
    assert member.kinds == [COMMIT]


async def test_a_member_that_is_already_joining_again_is_not_fenced_by_its_own_name():
    """A heartbeat without the member id, or with the former one, would be answered with 82."""
    member = Member(commit=25, heartbeat=82)
    member.coordinator.reset_generation()
    await member.commit()
    assert member.kinds == [COMMIT]
    member = Member(commit=25, heartbeat=82)
    send = member.send

    async def send_late(request):
        member.coordinator.reset_generation()  # by an answer to a heartbeat
        return await send(request)

    member.coordinator._send_req = send_late
    internals.call_when_fenced(
        SimpleNamespace(_coordinator=member.coordinator), "pod-0", member.fenced
    )
    await member.commit()
    assert (member.kinds, member.n_fenced) == ([COMMIT], 0)


async def test_brokers_that_cannot_remove_a_member_by_its_name_are_named():
    class Client:
        async def coordinator_lookup(self, kind, name):
            return 1

        async def send(self, node, request):
            return request.prepare({13: (0, 2)})

    with pytest.raises(SourceUnusable, match=r"older than 2\.4.*Stop pod-0.*session_timeout_ms"):
        await Requests(Client(), {}).remove_member("group", "pod-0")
