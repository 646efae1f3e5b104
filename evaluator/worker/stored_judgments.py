"""The judgments of stored queries: rows in order of arrival, and an index by query."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.join.changes import Changes
from evaluator.core.types.records import IntArray
from evaluator.ports import StateBatch, StateStore
from evaluator.wire.state.judgment_rows import (
    NO_ROW,
    JudgmentRow,
    StoredJudgment,
    applied_in,
    judgment_rows,
    rows_of,
)
from evaluator.wire.state.task_rows import StateDamaged, number_of, row_key


class StoredJudgments:
    """Writes, finds and deletes the judgments of a store.

    The table `judged` has the queries of the judgments of each commit, so that the row with the
    latest judgment of every query is in memory.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._clear()

    def _clear(self) -> None:
        self._latest = LatestRows()
        self._next = 0  # number of the next row; numbers are never used again
        self._firsts = np.empty(0, np.int64)  # first row of each commit
        self._last_queries = np.empty(0, np.int64)  # no earlier commit has a later query

    @property
    def n_bytes(self) -> int:
        """Memory of the index."""
        return self._latest.n_bytes

    def of(self, offsets: IntArray) -> list[list[StoredJudgment]]:
        """The judgments of each query, in their order; by the offsets of the rankings."""
        found: list[list[StoredJudgment]] = [[] for _ in offsets]
        rows, queries = self._latest.of(offsets), offsets.tolist()
        while len(left := np.flatnonzero(rows != NO_ROW)):
            numbers = np.unique(rows[left]).tolist()
            values = self._store.get("judgments", list(map(row_key, numbers)))
            read = dict(zip(numbers, map(JudgmentRow, values), strict=True))
            for index in left.tolist():
                row = int(rows[index])
                found[index][:0], rows[index] = read[row].of(queries[index])
                if rows[index] >= row:
                    raise StateDamaged(
                        f"row {row} of judgments does not come after the row before it"
                    )
        return found

    def write(self, batch: StateBatch, changes: Changes) -> None:
        """Puts applied judgments into *batch*."""
        applied = applied_in(changes)
        if applied is None:
            return
        queries = applied.query_offsets
        rows = rows_of(self._next, len(queries))
        order = np.argsort(queries, kind="stable")
        again = np.diff(queries[order]) == 0
        earlier = self._latest.of(queries)
        earlier[order[1:][again]] = rows[order[:-1][again]]
        latest = np.sort(order[~np.append(again, False)])
        values = judgment_rows(changes, applied, earlier, latest)
        batch.put("judgments", zip(map(row_key, np.unique(rows).tolist()), values, strict=True))
        batch.put("judged", [(row_key(self._next), queries.astype("<i8").tobytes())])
        self._add(queries, rows)

    def _add(self, queries: IntArray, rows: IntArray) -> None:
        self._latest.set(queries, rows)
        self._firsts = np.append(self._firsts, rows[0])
        last = max([int(queries.max()), *self._last_queries[-1:].tolist()])
        self._last_queries = np.append(self._last_queries, last)
        self._next = int(rows[-1]) + 1

    def delete_before(self, batch: StateBatch, offset: int) -> None:
        """Deletes the rows without a judgment of a query from *offset* on, except the last ones."""
        self._latest.drop_before(offset)
        n = min(int(np.searchsorted(self._last_queries, offset)), len(self._firsts) - 1)
        if n > 0:
            first, end = (row_key(int(self._firsts[at])) for at in (0, n))
            batch.delete_range("judged", first, end)
            self._firsts, self._last_queries = self._firsts[n:], self._last_queries[n:]

    def discard(self) -> None:
        """Deletes rows before those of the present commits."""
        if len(self._firsts):
            self._store.discard_before("judgments", row_key(int(self._firsts[0])))

    def load(self) -> None:
        """Finds the stored judgments."""
        self._clear()
        for key, value in self._store.rows("judged"):
            queries = np.frombuffer(value, "<i8").astype(np.int64)
            self._add(queries, rows_of(number_of(key), len(queries)))


class LatestRows:
    """The row with the latest judgment of each query, by the offset of the ranking: 4 bytes each.

    Rows are kept modulo 2^32 - 1, so those in use must be closer together.
    """

    _PAGE: Final = 1 << 16  # offsets
    _MODULUS: Final = (1 << 32) - 1

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.uint32]] = {}  # 0: no judgment
        self._newest = 0

    @property
    def n_bytes(self) -> int:
        """Memory of the rows."""
        return 4 * self._PAGE * len(self._pages)

    def of(self, offsets: IntArray) -> IntArray:
        """The row of each query, `NO_ROW` for none."""
        rows = np.zeros(len(offsets), np.int64)
        for number, chosen in self._by_page(offsets):
            page = self._pages.get(number)
            if page is not None:
                rows[chosen] = page[offsets[chosen] % self._PAGE]
        behind = (self._newest + 1 - rows) % self._MODULUS
        return np.where(rows > 0, self._newest - behind, NO_ROW)

    def set(self, offsets: IntArray, rows: IntArray) -> None:
        """Sets the rows of queries; of equal offsets the last one counts."""
        self._newest = max(self._newest, int(rows.max()))
        for number, chosen in self._by_page(offsets):
            page = self._pages.setdefault(number, np.zeros(self._PAGE, np.uint32))
            page[offsets[chosen] % self._PAGE] = rows[chosen] % self._MODULUS + 1

    def drop_before(self, offset: int) -> None:
        """Drops pages of earlier queries only."""
        for number in [each for each in self._pages if each < offset // self._PAGE]:
            del self._pages[number]

    def _by_page(self, offsets: IntArray) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        pages = offsets // self._PAGE
        return ((number, pages == number) for number in np.unique(pages).tolist())
