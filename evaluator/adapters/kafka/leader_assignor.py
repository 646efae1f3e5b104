"""A leader keeps its partition when other processes join the group."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

_LEADER: Final = b"leader"


class LeaderAssignor(RangePartitionAssignor):  # type: ignore[misc] # untyped in the library
    """Assigns a partition to the member that already has it; else by range.

    By range alone it is the member with the smallest id, and ids are random. It speaks the
    protocol of range, so members that know no more than that may be in the same group. The library
    takes classes and asks them nothing but this; each member needs one of its own.

    Args:
        is_leader: whether this member is.
    """

    def __init__(self, is_leader: Callable[[], bool]) -> None:
        self._is_leader = is_leader

    def metadata(self, topics: Iterable[str]) -> Any:
        said = _LEADER if self._is_leader() else b""
        return ConsumerProtocolMemberMetadata(self.version, list(topics), said)

    def assign(
        self, cluster: Any, members: Mapping[str, Any]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assigns by range among the members that are leader now, if there are any."""
        there = {name: each for name, each in members.items() if each.user_data == _LEADER}
        chosen = super().assign(cluster, there or members)
        nothing = ConsumerProtocolMemberAssignment(self.version, [], b"")
        return {name: chosen.get(name, nothing) for name in members}
