"""The assignment of the one partition that represents the leadership."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from evaluator.adapters.kafka import Connection, GroupSettings
from evaluator.adapters.kafka.election import Election, LeaderAssignor

CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: {0} if topic == "weights" else None)


def chosen(members, leader=None):
    """The member that is assigned the partition, from the metadata of *members* on joining."""
    metadata = {name: member.metadata(["weights"]) for name, member in members.items()}
    given = (leader or next(iter(members.values()))).assign(CLUSTER, metadata)
    assert given.keys() == members.keys()
    return [
        name for name, each in given.items() if TopicPartition("weights", 0) in each.partitions()
    ]


async def test_a_poll_does_not_wait_while_the_group_assigns():
    class Assigning:
        """A consumer whose group waits for a dead member."""

        _coordinator = SimpleNamespace(check_errors=lambda: None)
        _subscription = SubscriptionState()

        async def getmany(self, **_):
            await asyncio.sleep(3_600)

    election = Election(Connection("127.0.0.1:9"), GroupSettings("g"), "weights")
    election._consumer = Assigning()
    with pytest.raises(StopIteration):  # at the first step
        election.poll().send(None)


def member(*, is_leader):
    return LeaderAssignor(lambda: is_leader)


@pytest.mark.parametrize("place", range(4))
def test_the_leader_stays_the_leader_for_any_member_ids(place):
    members = {f"id-{i}": member(is_leader=i == place) for i in range(4)}
    assert chosen(members) == [f"id-{place}"]


def test_all_members_choose_the_same_leader_if_there_is_none():
    members = {f"id-{i}": member(is_leader=False) for i in (2, 0, 1)}
    assert {tuple(chosen(members, leader)) for leader in members.values()} == {("id-0",)}


def test_one_of_two_members_that_claim_leadership_is_chosen():
    members = {f"id-{i}": member(is_leader=i > 0) for i in range(3)}
    assert chosen(members) == ["id-1"]


def test_a_member_reports_its_state_at_the_time_of_the_assignment():
    now = [False]
    one, other = LeaderAssignor(lambda: now[0]), member(is_leader=False)
    assert chosen({"a": other, "b": one}) == ["a"]
    now[0] = True
    assert chosen({"a": other, "b": one}) == ["b"]


def test_members_with_only_range_assignment_may_join_the_leader_group():
    assert LeaderAssignor.name == RangePartitionAssignor.name
    members = {"a": RangePartitionAssignor, "b": member(is_leader=True)}
    assert chosen(members, leader=members["b"]) == ["b"]
    assert chosen(members, leader=RangePartitionAssignor) == ["a"]
