"""The positions in `settled` that the next leader reads from."""

from collections import deque
from collections.abc import Mapping

from evaluator.core.online.ordered_merge import SettledQuery


class Places:
    """The offset behind the last query taken of each task, as it was first read.

    A worker that was killed writes records again: the first occurrence counts, so that the places
    do not depend on the reader.

    Args:
        begun: the places of an earlier leader.
    """

    def __init__(self, begun: Mapping[int, int]) -> None:
        self._behind = dict(begun)
        self._read: dict[int, deque[tuple[int, int]]] = {}
        self._last_n: dict[int, int] = {}

    def note(self, query: SettledQuery, offset: int) -> None:
        """A query was read at an offset, perhaps not for the first time."""
        if query.n > self._last_n.get(query.task, -1):
            self._last_n[query.task] = query.n
            self._read.setdefault(query.task, deque()).append((query.n, offset + 1))

    def up_to(self, next_ns: Mapping[int, int]) -> dict[int, int]:
        """The place of each task whose next query to be taken has that number."""
        for task, next_n in next_ns.items():
            read = self._read.get(task, deque())
            while read and read[0][0] < next_n:
                self._behind[task] = read.popleft()[1]
        return dict(self._behind)
