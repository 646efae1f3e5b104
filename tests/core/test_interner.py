"""Values as small integers: the same value always has the same number, no two share one."""

import random

from evaluator.core.columns.interning import DictionaryColumn, Interner

NAMES = ["a", "a\0", "", "é", "éa", *(f"tool-{n}" for n in range(300))]


def test_numbers_of_strings_and_of_column_agree():
    numbering, dice = Interner(), random.Random(7)
    for _ in range(30):
        names = dice.choices(NAMES, k=dice.randrange(1, 50))
        column = DictionaryColumn(names, DictionaryColumn.of(names).numbers[::-1])
        assert column.strings() == names[::-1]
        numbers = numbering.of_column(column).tolist()
        assert numbers == numbering.of(names[::-1], len(names)).tolist()
        assert [numbering.values_by_number[number] for number in numbers] == names[::-1]
    assert len(numbering.values_by_number) == len(set(numbering.values_by_number))


def test_joined_columns_are_one_column():
    dice = random.Random(7)
    parts = [DictionaryColumn.of(dice.choices(NAMES, k=n)) for n in (3, 0, 40, 1)]
    twice = DictionaryColumn.joined([DictionaryColumn.joined(parts), *parts])
    assert twice.strings() == [name for part in parts * 2 for name in part.strings()]
    assert twice.strings(2, 5) == twice.strings()[2:5]
    assert len(DictionaryColumn.joined([])) == 0
