"""Who shares the tasks of a MemoryBroker, and what was committed."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from evaluator.ports import Committed, Partition


class Member(Protocol):
    """What a group needs of its members."""

    @property
    def release_timeout_seconds(self) -> float:
        """How long a handover waits for this member."""

    @property
    def owns_anything(self) -> bool:
        """Whether this member has tasks to let go of."""

    @property
    def revoking(self) -> bool:
        """Whether the group waits for this member to let go."""

    def begin_handover(self) -> None:
        """The group asks for this member's tasks."""

    def release(self) -> None:
        """Lets go, or is made to."""

    def assign(self, tasks: frozenset[int]) -> None:
        """The group gives *tasks* to this member."""


class Group:
    """Members in the order of joining; a task goes to one of them, in ranges."""

    def __init__(self, n_tasks: int, tell: Callable[[], None]) -> None:
        self.commits: dict[Partition, Committed] = {}
        self.members: list[Member] = []
        self._n_tasks = n_tasks
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def join(self, member: Member) -> None:
        self.members.append(member)
        self._rebalance()

    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
            self._rebalance()

    def _rebalance(self) -> None:
        """Asks every owner to let go; `advance` goes on when all have."""
        owners = [member for member in self.members if member.owns_anything]
        for member in owners:
            member.begin_handover()
        if self._timer is None and owners:
            timeout_seconds = owners[0].release_timeout_seconds
            self._timer = asyncio.get_running_loop().call_later(timeout_seconds, self._force)
        self.advance()

    def _force(self) -> None:
        for member in self.members:
            member.release()

    def advance(self) -> None:
        """Assigns the tasks again unless a member still holds some."""
        self._tell()
        if any(member.revoking for member in self.members):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        n_members = len(self.members)
        for index, member in enumerate(self.members):
            share, extra = divmod(self._n_tasks, n_members)
            first = index * share + min(index, extra)
            member.assign(frozenset(range(first, first + share + (index < extra))))
