"""Assigns the tasks of a group to the members whose stores of them reach furthest."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from evaluator.adapters.kafka.aiokafka_internals import (
    MemberAssignment,
    MemberMetadata,
    RangeAssignor,
)
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.ports import SourceUnusable
from evaluator.wire.reading import UNREADABLE, Count

MAX_CLAIMS: Final = 1_000
"""Most claims that a member sends to the group: the furthest ones."""

Claims = Mapping[int, int]
"""Progress of the stores of a member by task: the sum of both positions, above 0."""


def shared_out(tasks: Sequence[int], claims: Mapping[str, Claims]) -> dict[str, list[int]]:
    """The tasks of each member; their numbers differ by at most one.

    Tasks that fewer members claim are served first, because no other has a store of them, and of a
    task the furthest claim. The rest goes to the members with the fewest tasks.

    >>> shared_out([0, 1, 2, 3], {"a": {0: 50, 1: 40, 2: 30}, "b": {2: 20}})
    {'a': [0, 1], 'b': [2, 3]}
    """
    share, n_larger = divmod(len(tasks), len(claims))
    found: dict[str, list[int]] = {member: [] for member in sorted(claims)}
    left = set(tasks)
    n_claims = Counter(task for each in claims.values() for task in each)
    for _, _, task, member in sorted(
        (n_claims[task], -reach, task, member)
        for member, each in claims.items()
        for task, reach in each.items()
        if task in left and reach > 0
    ):
        takes = len(found[member]) < share + (n_larger > 0)
        if task in left and takes:
            n_larger -= len(found[member]) == share
            found[member].append(task)
            left.remove(task)
    for task in sorted(left):
        min(found.values(), key=len).append(task)
    return {member: sorted(each) for member, each in found.items()}


class StoreAssignor(RangeAssignor):  # type: ignore[misc] # untyped in the library
    """Assigns both partitions of a task to one member, by the claims in the user data of members.

    Members with the plain range assignor may be in the same group, as the protocol is the same:
    they have no claims, and as leaders they assign by range. aiokafka expects a class; it uses
    only these methods, so each member passes an instance.

    Args:
        claims: the claims of this member.
        assigned: called with the partition count that the group has assigned by, if known.
        group: the group of this member.
    """

    def __init__(
        self, claims: Callable[[], Claims], assigned: Callable[[int], None], group: GroupSettings
    ) -> None:
        self.n_rejoins = 0
        self._group = group
        self._claims = claims
        self._assigned = assigned

    def metadata(self, topics: Iterable[str]) -> Any:
        """The subscription with the claims.

        The number of rejoins makes each differ from the one before, without which the broker
        would not assign again.
        """
        furthest = sorted(self._claims().items(), key=lambda each: -each[1])[:MAX_CLAIMS]
        group = self._group
        sent = _UserData(
            claims=dict(furthest),
            rejoins=self.n_rejoins,
            fingerprint=group.fingerprint,
            prefix=group.topic_prefix,
        )
        return MemberMetadata(self.version, list(topics), msgspec.json.encode(sent))

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Assigns by range if the members or topics differ in their topics or partitions."""
        subscribed = {frozenset(each.subscription) for each in members.values()}
        topics = sorted(next(iter(subscribed)))
        counts = {len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        if len(subscribed) > 1 or len(counts) > 1 or counts == {0}:
            return dict(super().assign(cluster, members))
        (count,) = counts
        shares = shared_out(
            range(count), {name: _read(each.user_data).claims for name, each in members.items()}
        )
        user_data = msgspec.json.encode(_UserData(partitions=count))
        return {
            name: MemberAssignment(self.version, [(topic, tasks) for topic in topics], user_data)
            for name, tasks in shares.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        if count := _read(assignment.user_data).partitions:
            self._assigned(count)


class _UserData(msgspec.Struct):
    """User data that a member sends to the leader of its group, and gets from it."""

    claims: dict[Count, Count] = {}
    rejoins: Count = 0
    partitions: Count = 0
    fingerprint: str = ""
    prefix: str = ""


def _read(user_data: bytes | None) -> _UserData:
    """User data of any member; empty if it belongs to another assignor."""
    try:
        return msgspec.json.decode(user_data or b"{}", type=_UserData)
    except UNREADABLE:
        return _UserData()


def subscribed(subscription: bytes) -> list[str]:
    """The topics of a member by its subscription; [] if it belongs to no consumer."""
    try:
        return list(MemberMetadata.decode(subscription).subscription)
    except (ValueError, struct.error):
        return []


def require_alike(group: GroupSettings, members: Iterable[tuple[str, bytes]]) -> None:
    """Raises SourceUnusable if a member of the group has another meaning or writes elsewhere.

    Args:
        group: of this process; a member of its own name does not count.
        members: names and subscriptions, of any assignor.
    """
    for name, subscription in members:
        try:
            other = _read(MemberMetadata.decode(subscription).user_data)
        except (ValueError, struct.error):  # it belongs to no consumer
            continue
        if not group.fingerprint or not other.fingerprint:
            continue
        if name and name == group.group_instance_id:
            continue
        if (other.fingerprint, other.prefix) != (group.fingerprint, group.topic_prefix):
            raise SourceUnusable(
                f"Group {group.group_id} has a worker with the fingerprint "
                f"{other.fingerprint[:64]!r} that writes to topics with the prefix "
                f"{other.prefix[:150]!r}; here they are {group.fingerprint!r} and "
                f"{group.topic_prefix!r}. Workers of one group need the same. To run both beside "
                "each other set another group_id and output_prefix (docs/blue-green.md). To "
                "replace it, stop all workers of the group first; one that was killed, or stopped "
                "with a name, is a member until session_timeout_ms has passed, or until `evaluator "
                "group remove`."
            )
