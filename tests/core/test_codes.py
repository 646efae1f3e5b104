"""Values as small integers: the same value always has the same number, no two share one."""

import random

from evaluator.core.codes import Numbering
from evaluator.core.mentions import Mentions

NAMES = ["a", "a\0", "", "é", "éa", *(f"tool-{n}" for n in range(300))]


def test_numbers_of_strings_and_of_mentions_agree():
    numbering, dice = Numbering(), random.Random(7)
    for _ in range(30):
        names = dice.choices(NAMES, k=dice.randrange(1, 50))
        column = Mentions(names, Mentions.of(names).numbers[::-1])
        assert column.strings() == names[::-1]
        numbers = numbering.of_mentions(column).tolist()
        assert numbers == numbering.of(names[::-1], len(names)).tolist()
        assert [numbering.values_by_number[number] for number in numbers] == names[::-1]
    assert len(numbering.values_by_number) == len(set(numbering.values_by_number))


def test_joined_columns_are_one_column():
    dice = random.Random(7)
    parts = [Mentions.of(dice.choices(NAMES, k=n)) for n in (3, 0, 40, 1)]
    twice = Mentions.joined([Mentions.joined(parts), *parts])
    assert twice.strings() == [name for part in parts * 2 for name in part.strings()]
    assert twice.strings(2, 5) == twice.strings()[2:5]
    assert len(Mentions.joined([])) == 0
