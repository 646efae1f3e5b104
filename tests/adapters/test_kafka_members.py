"""Named members: the earlier of two with the same name stops, and members can be removed."""

import contextlib
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.structs import OffsetAndMetadata

from evaluator.adapters.kafka import aiokafka_internals as internals
from evaluator.adapters.kafka.clients import Requests
from evaluator.ports import SourceUnusable

VERSIONS = {8: (0, 3), 11: (0, 5), 12: (0, 4), 15: (0, 5)}
"""Versions of commits, joins, heartbeats and descriptions of groups that the broker has."""
COMMIT, JOIN, HEARTBEAT, DESCRIBE = VERSIONS


class Member:
    """A coordinator without a client, and a broker that answers with these codes.

    The group has a member pod-0 with the member id *holder*.
    """

    def __init__(self, *, commit=0, heartbeat=0, join=0, holder="later", versions=VERSIONS):
        self.sent, self.n_fenced, self.versions = [], 0, versions
        rows = [("first", None), (holder, "pod-0"), ("last", "pod-1")]
        members = [(*row, "client", "host", b"", b"") for row in rows]
        self.groups = [(0, "group", "Stable", "consumer", "range", members, 0)]
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
        self.sent.append(request.prepare(self.versions))
        if request.API_KEY == DESCRIBE:
            return SimpleNamespace(groups=self.groups)
        code = self.codes[request.API_KEY]
        topics = [("topic", [(0, 0), (1, code)])]
        return SimpleNamespace(error_code=code, topics=topics, member_id="given")

    async def commit(self):
        """Like the library: its error, or None."""
        offsets = {TopicPartition("topic", n): OffsetAndMetadata(5, "") for n in (0, 1)}
        try:
            await self.coordinator._do_commit_offsets(None, offsets)
        except kafka_errors.KafkaError as error:
            return type(error)

    async def beat(self):
        with contextlib.suppress(kafka_errors.KafkaError):
            await self.coordinator._do_heartbeat()

    @staticmethod
    def join_request():
        return JoinGroupRequest("group", 1_000, 1_000, "", "pod-0", "consumer", [])

    async def join(self):
        """As the library: None if there is no assignment and it tries again."""
        subscription = SimpleNamespace(topics=["topic"], active=True)
        times = {"session_timeout_ms": 1_000, "retry_backoff_ms": 0}
        joining = CoordinatorGroupRebalance(
            self.coordinator, "group", 1, subscription, [RangePartitionAssignor], **times
        )
        return await joining.perform_group_join()


@pytest.mark.parametrize("code", [0, 25, 82])
async def test_a_member_is_fenced_by_one_error_code_only(code):
    member = Member(heartbeat=code)
    await member.beat()
    assert member.sent[0].group_instance_id == "pod-0"
    assert member.kinds == [HEARTBEAT, *[DESCRIBE] * (code == 82)]
    assert member.n_fenced == (code == 82)


@pytest.mark.parametrize("holder", ["given", "unknown"])
async def test_a_member_that_no_other_process_fenced_rejoins(holder):
    """The broker has lost the assignment that gave it its member id, but not an earlier one."""
    member = Member(heartbeat=82, holder=holder)
    if holder == "unknown":
        member.groups[0][5].pop(1)
    await member.coordinator._send_req(member.join_request())
    await member.beat()
    assert member.n_fenced == 0
    member.codes[JOIN] = 82  # by a join that was sent with the same member id
    member.coordinator.member_id = "member"
    assert await member.join() is None
    assert member.coordinator.member_id == ""
    assert await member.join() is None
    assert member.sent[-2].member_id == ""
    assert member.n_fenced == 0


@pytest.mark.parametrize(("version", "code"), [(3, 0), (5, 30)])
async def test_a_member_that_cannot_list_the_others_is_fenced_by_the_code_alone(version, code):
    member = Member(heartbeat=82, holder="given", versions=VERSIONS | {DESCRIBE: (0, version)})
    member.groups[0] = (code, *member.groups[0][1:])
    await member.coordinator._send_req(member.join_request())
    await member.beat()
    assert member.n_fenced == 1


async def test_a_fenced_member_stays_fenced_when_the_later_one_leaves():
    member = Member(heartbeat=82, join=25)
    await member.beat()
    member.groups[0][5].pop(1)
    await member.beat()
    assert member.n_fenced == 1
    assert await member.join() is None
    assert JOIN not in member.kinds


@pytest.mark.parametrize(
    "refused", [kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError]
)
async def test_a_member_whose_commit_is_refused_checks_whether_it_was_replaced(refused):
    """Before the library forgets its member id: then it would replace the later member."""
    member = Member(commit=refused.errno, heartbeat=82, join=25)
    assert await member.commit() is refused
    assert member.kinds == [COMMIT, HEARTBEAT, DESCRIBE]
    request = member.sent[1]
    assert (request.generation_id, request.member_id, request.group_instance_id) == (
        7,
        "member",
        "pod-0",
    )
    assert member.n_fenced == 1
    assert await member.join() is None
    assert JOIN not in member.kinds


@pytest.mark.parametrize("code", [22, 25])
async def test_a_member_whose_session_has_ended_rejoins(code):
    """If no other process has its name, the broker does not fence it."""
    member = Member(commit=25, heartbeat=code, join=25)
    assert await member.commit() is kafka_errors.UnknownMemberIdError
    assert member.n_fenced == 0
    assert await member.join() is None
    assert member.kinds == [COMMIT, HEARTBEAT, JOIN]
    assert (member.sent[-1].member_id, member.sent[-1].group_instance_id) == ("", "pod-0")


@pytest.mark.parametrize("code", [0, 27])
async def test_accepted_commits_send_no_further_request(code):
    member = Member(commit=code, heartbeat=82)
    await member.commit()
    assert member.kinds == [COMMIT]


async def test_a_member_that_is_already_rejoining_is_not_fenced_by_its_own_name():
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
