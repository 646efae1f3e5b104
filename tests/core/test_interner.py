"""Values as small integers: equal values have the same number, different ones never."""

import random

import numpy as np

from evaluator.core.columns.interning import DictionaryColumn, Interner, Values

NAMES = ["a", "a\0", "", "é", "éa", *(f"tool-{n}" for n in range(300))]


def test_numbers_of_strings_equal_those_of_a_column():
    numbering, dice = Interner(), random.Random(7)
    for _ in range(30):
        names = dice.choices(NAMES, k=dice.randrange(1, 50))
        column = DictionaryColumn(names, DictionaryColumn.of(names).numbers[::-1])
        assert column.values() == names[::-1]
        numbers = numbering.of_column(column).tolist()
        assert numbers == numbering.of(names[::-1], len(names)).tolist()
        assert [numbering.values_by_number[number] for number in numbers] == names[::-1]
    assert len(numbering.values_by_number) == len(set(numbering.values_by_number))


def test_joined_columns_are_one_column():
    dice = random.Random(7)
    parts = [DictionaryColumn.of(dice.choices(NAMES, k=n)) for n in (3, 0, 40, 1)]
    twice = DictionaryColumn.joined([DictionaryColumn.joined(parts), *parts])
    assert twice.values() == [name for part in parts * 2 for name in part.values()]
    assert twice.values(2, 5) == twice.values()[2:5]
    assert len(DictionaryColumn.joined([])) == 0


def test_a_growing_list_of_names_keeps_numbers_and_unused_names_get_none():
    interner, dice, names = Interner(), random.Random(7), Values()
    for _ in range(30):
        names += [f"name {len(names) + n}" for n in range(3)]
        column = DictionaryColumn(names, np.array(dice.choices(range(len(names)), k=4), np.int32))
        other = DictionaryColumn.of(dice.choices(NAMES, k=2))
        both = DictionaryColumn.joined([column, other, column])
        assert both.values() == [*column.values(), *other.values(), *column.values()]
        for each in (column, both, DictionaryColumn.joined([column, column])):
            numbers = interner.of_column(each).tolist()
            assert [interner.values_by_number[number] for number in numbers] == each.values()
        assert column.compact().names == list(dict.fromkeys(column.values()))
        assert column.compact().values() == column.values()
    assert len(interner) < len(names) + len(NAMES)
    assert set(interner) <= {*names, *NAMES}
    interner.of_column(DictionaryColumn(Values(["later"]), np.zeros(1, np.int32)))
    assert "later" in interner
