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
    asked = {name: member.metadata(["weights"]) for name, member in members.items()}
    given = (leader or next(iter(members.values()))).assign(CLUSTER, asked)
    assert given.keys() == members.keys()
    return [
        name for name, each in given.items() if TopicPartition("weights", 0) in each.partitions()
    ]


async def test_a_poll_waits_for_nothing_while_the_group_assigns():
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
def test_who_is_is_leader_stays_there_whatever_the_ids_are(place):
    members = {f"id-{i}": member(is_leader=i == place) for i in range(4)}
    assert chosen(members) == [f"id-{place}"]


def test_where_nobody_is_it_is_one_and_the_same_for_all():
    members = {f"id-{i}": member(is_leader=False) for i in (2, 0, 1)}
    assert {tuple(chosen(members, leader)) for leader in members.values()} == {("id-0",)}


def test_of_two_that_think_they_are_it_is_one_of_them():
    members = {f"id-{i}": member(is_leader=i > 0) for i in range(3)}
    assert chosen(members) == ["id-1"]


def test_what_a_member_says_is_what_it_is_when_it_is_asked():
    now = [False]
    one, other = LeaderAssignor(lambda: now[0]), member(is_leader=False)
    assert chosen({"a": other, "b": one}) == ["a"]
    now[0] = True
    assert chosen({"a": other, "b": one}) == ["b"]


def test_members_that_know_ranges_alone_may_be_in_the_same_group():
    assert LeaderAssignor.name == RangePartitionAssignor.name
    members = {"a": RangePartitionAssignor, "b": member(is_leader=True)}
    assert chosen(members, leader=members["b"]) == ["b"]
    assert chosen(members, leader=RangePartitionAssignor) == ["a"]
