"""Tasks are assigned to the members with the furthest stores, in fair shares."""

import random
from types import SimpleNamespace

import msgspec
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from msgspec.structs import replace

from evaluator.adapters.kafka.assignment import (
    MAX_CLAIMS,
    StoreAssignor,
    require_alike,
    shared_out,
)
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.ports import SourceUnusable

GROUP = GroupSettings("g", "blue.", fingerprint="f")
TOPICS = ["judgments", "rankings"]


def cluster(**counts):
    return SimpleNamespace(partitions_for_topic=lambda topic: set(range(counts.get(topic, 0))))


def member(claims=None, counted=None, group=GROUP):
    counted = counted if counted is not None else []
    return StoreAssignor(lambda: claims or {}, counted.append, group)


def assigned(members, n_tasks, leader=None, judgments=None):
    """The partitions of each topic by member, after user data went over the wire."""
    sent = {name: each.metadata(TOPICS) for name, each in members.items()}
    read = {
        name: ConsumerProtocolMemberMetadata.decode(each.encode()) for name, each in sent.items()
    }
    there = cluster(rankings=n_tasks, judgments=judgments or n_tasks)
    given = (leader or next(iter(members.values()))).assign(there, read)
    return {
        name: {topic: sorted(numbers) for topic, numbers in each.assignment}
        for name, each in given.items()
    }


def test_counts_differ_by_one_at_most_and_each_task_has_one_member():
    chance = random.Random(7)
    for _ in range(300):
        n_tasks, n_members = chance.randrange(1, 20), chance.randrange(1, 8)
        claims = {
            f"m{i}": {
                task: chance.randrange(0, 4)
                for task in range(n_tasks + 2)  # also of tasks that do not exist
                if chance.random() < 0.5
            }
            for i in range(n_members)
        }
        found = shared_out(range(n_tasks), claims)
        assert found.keys() == claims.keys()
        assert sorted(task for each in found.values() for task in each) == list(range(n_tasks))
        counts = [len(each) for each in found.values()]
        assert max(counts) - min(counts) <= 1


def test_the_furthest_store_has_its_task_and_stores_at_zero_have_no_claim():
    claims = {"a": {0: 5, 1: 900, 2: 0}, "b": {0: 6, 1: 899, 3: 1}}
    assert shared_out(range(4), claims) == {"a": [1, 2], "b": [0, 3]}


def moves(before, after):
    """Tasks whose member has changed."""
    owner = {task: name for name, tasks in before.items() for task in tasks}
    return sum(owner[task] != name for name, tasks in after.items() for task in tasks)


def test_a_fourth_member_moves_four_of_sixteen_tasks_and_range_assignment_nine():
    three = dict.fromkeys("abc", RangePartitionAssignor)
    before = {name: each["rankings"] for name, each in assigned(three, 16).items()}
    four = dict.fromkeys("abcd", RangePartitionAssignor)
    by_range = {name: each["rankings"] for name, each in assigned(four, 16).items()}
    assert moves(before, by_range) == 9
    reach = {name: {task: 1_000 + task for task in tasks} for name, tasks in before.items()}
    assert moves(before, shared_out(range(16), {**reach, "d": {}})) == 4  # its fair share


def test_a_returning_member_gets_the_tasks_of_its_stores():
    """The others have read on meanwhile, so their stores of these tasks are further."""
    owners = {"a": {0: 90, 1: 99, 2: 80, 3: 98}, "b": {1: 70, 3: 60}}
    assert shared_out(range(4), owners) == {"a": [0, 2], "b": [1, 3]}


def test_a_stale_store_takes_no_task_from_a_member_below_its_share():
    claims = {"a": {0: 90, 1: 90}, "b": {0: 89, 1: 89, 2: 5}, "c": {3: 1}}
    assert shared_out(range(4), claims) == {"a": [0, 1], "b": [2], "c": [3]}


def test_both_partitions_of_a_task_have_the_same_member():
    found = assigned({"a": member({3: 9, 4: 9}), "b": member({0: 5})}, 5)
    for each in found.values():
        assert each["rankings"] == each["judgments"]
    assert {3, 4} <= set(found["a"]["rankings"])
    assert 0 in found["b"]["rankings"]


def test_members_with_only_range_assignment_may_be_in_the_same_group():
    assert StoreAssignor.name == RangePartitionAssignor.name
    members = {"a": RangePartitionAssignor, "b": member({0: 5, 1: 5})}
    assert assigned(members, 4, leader=members["b"])["b"]["rankings"] == [0, 1]
    assert assigned(members, 4, leader=RangePartitionAssignor)["b"]["rankings"] == [2, 3]


@pytest.mark.parametrize(
    "user_data",
    [
        *(None, b"", b"\xff", b"[]", b"{", b"leader", b"[" * 100_000, b'{"claims": []}'),
        *(b'{"claims": {"0": "far"}}', b'{"claims": {"x": 1}}', b'{"claims": {"0": -1}}'),
        *(b'{"claims": {"0": 1e400}}', b'{"claims": {"0": 99999999999999999999}}'),
        *(b'{"claims": {"99": 7}}', b'{"claims": {"0": true}}', b'{"rejoins": "often"}'),
    ],
)
def test_unknown_user_data_is_ignored_as_a_claim(user_data):
    other = ConsumerProtocolMemberMetadata(0, TOPICS, user_data)
    members = {"a": other, "b": member({0: 1}).metadata(TOPICS)}
    given = member().assign(cluster(rankings=2, judgments=2), members)
    assert given["b"].assignment[0] == ("judgments", [0])
    counted = []
    member(counted=counted).on_assignment(ConsumerProtocolMemberAssignment(0, [], user_data))
    assert counted == []


def test_members_receive_the_partition_count_that_the_group_leader_used():
    counted = []
    one = member(counted=counted)
    given = one.assign(cluster(rankings=3, judgments=3), {"a": one.metadata(TOPICS)})
    one.on_assignment(ConsumerProtocolMemberAssignment.decode(given["a"].encode()))
    assert counted == [3]


def test_a_rejoin_changes_what_a_member_sends():
    one = member({0: 1})
    before = one.metadata(TOPICS).encode()
    assert one.metadata(TOPICS).encode() == before
    one.n_rejoins += 1
    assert one.metadata(TOPICS).encode() != before


def test_topics_of_different_partition_counts_are_assigned_by_range():
    found = assigned({"a": member({0: 5}), "b": member()}, 4, judgments=2)
    assert found["b"] == {"judgments": [1], "rankings": [2, 3]}


def test_only_the_furthest_claims_are_sent():
    one = member({task: 10 + task for task in range(MAX_CLAIMS + 5)})
    sent = one.metadata(TOPICS).user_data
    assert len(msgspec.json.decode(sent)["claims"]) == MAX_CLAIMS
    assert b'"5":15' in sent
    assert b'"4":14' not in sent


@pytest.mark.parametrize(
    ("change", "joins"),
    [
        ({}, True),
        ({"fingerprint": "other"}, False),
        ({"topic_prefix": "green."}, False),
        ({"fingerprint": "other", "group_instance_id": "pod-0"}, True),
        ({"fingerprint": "other", "group_instance_id": "pod-1"}, False),
        ({"fingerprint": ""}, True),
    ],
    ids=["same", "meaning", "outputs", "own name", "another name", "an older version"],
)
def test_a_worker_joins_members_of_the_same_meaning_and_outputs_only(change, joins):
    """The member of its own name is the process that it replaces."""
    other = replace(GROUP, **change)
    sent = RangePartitionAssignor.metadata(TOPICS), member(group=other).metadata(TOPICS)
    others = [(other.group_instance_id or "", each.encode()) for each in sent]
    others = [("", b""), ("", b"\xff\xff"), *others]
    joining = replace(GROUP, group_instance_id="pod-0")
    if joins:
        require_alike(joining, others)
        return
    with pytest.raises(SourceUnusable, match=r"Group g has a worker with the fingerprint"):
        require_alike(joining, others)


def test_data_of_another_worker_is_printed_escaped_and_cut():
    other = replace(GROUP, fingerprint="\x1b\n" * 1_000, topic_prefix="\x1b\n" * 1_000)
    sent = member(group=other).metadata(TOPICS).encode()
    with pytest.raises(SourceUnusable) as refused:
        require_alike(GROUP, [("", sent)])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2_000
