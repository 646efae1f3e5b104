"""Texts of open queries, in a pool of words; the table has their sizes."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from evaluator.core.columns.table import IntArray, RaggedColumns, RowTable
from evaluator.core.columns.texts import TextRows

_SIZES: Final = ("trace_size", "node_size", "query_size")  # see `TextRows`
TEXT_COLUMNS: Final[Mapping[str, DTypeLike]] = {
    "text_start": np.int32,
    **dict.fromkeys(_SIZES[:2], np.uint16),
    _SIZES[2]: np.int32,
    "plain": np.bool_,
}


class QueryTexts:
    """trace_id, node_id and query of open queries."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self.pool = RaggedColumns({"word": np.uint64})

    def add(self, rows: IntArray, texts: TextRows) -> None:
        """Sets the texts of new queries."""
        table = self._table
        table["text_start"][rows] = self.pool.append(texts.n_words, word=texts.flat())
        for name, sizes in zip(_SIZES, texts.sizes.T, strict=True):
            table[name][rows] = sizes
        table["plain"][rows] = texts.plain

    def of(self, rows: IntArray) -> TextRows:
        """The texts of queries."""
        table = self._table
        sizes = np.stack([table[name][rows] for name in _SIZES], axis=1, dtype=np.int64)
        starts = table["text_start"][rows].astype(np.int64)
        return TextRows(self.pool["word"], starts, sizes, table["plain"][rows])

    def discard(self, rows: IntArray) -> None:
        """Discards the texts of expired queries."""
        self.pool.discard(int(self.of(rows).n_words.sum()))
