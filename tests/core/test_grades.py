"""Grades in columns equal the rows from which they are made."""

import random

import numpy as np

from evaluator.core.columns.grades import GradeColumns


def rows_of(rng, n):
    names = ["a", "b", "c", "ä"]
    return [
        {name: rng.choice([None, 0.0, 0.5, 31.0]) for name in rng.sample(names, rng.randrange(4))}
        for _ in range(n)
    ]


def test_rows_are_read_in_order_together_and_one_by_one():
    rows = rows_of(random.Random(1), 40)
    columns = GradeColumns.of(rows)
    assert list(columns) == rows
    assert [columns[row] for row in range(len(columns))] == rows
    assert [list(row) for row in columns] == [list(row) for row in rows]


def test_columns_are_joined_picked_and_placed():
    rng = random.Random(2)
    parts = [rows_of(rng, n) for n in (3, 0, 5)]
    rows = [row for part in parts for row in part]
    columns = GradeColumns.joined(list(map(GradeColumns.of, parts)))
    assert list(columns) == rows
    chosen = np.array([7, 0, 3])
    assert list(columns.picked(chosen)) == [rows[7], rows[0], rows[3]]
    placed = columns.picked(chosen).placed(np.array([5, 1, 2]), 6)
    assert list(placed) == [{}, rows[0], rows[3], {}, {}, rows[7]]
    assert list(GradeColumns.joined([])) == []
