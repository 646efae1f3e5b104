"""The levels that carry a drop: those of the best segment, the change of mix, or all."""

import pytest

from evaluator.core.alarms.alarm import Carrier
from evaluator.core.online.carriers import EVERYWHERE, MIX, carriers_of

CHANGE = -0.04


def level(name, queries_share, change, segment="locale"):
    """A level: its share of the drop is its share of the queries times its change."""
    return Carrier(segment, name, queries_share * change / CHANGE, queries_share, change)


def test_the_largest_levels_are_named_until_most_of_the_drop_is():
    levels = [level("de", 0.3, -0.1), level("fr", 0.3, -0.03), level("en", 0.4, -0.0025)]
    assert carriers_of([levels], CHANGE) == (levels[0], levels[1])  # 75 % and 22.5 %
    assert carriers_of([levels[::-1]], CHANGE) == (levels[0], levels[1])


def test_a_drop_of_all_levels_alike_is_everywhere():
    levels = [level("de", 0.3, -0.041), level("fr", 0.7, -0.0396)]
    assert carriers_of([levels], CHANGE) == (Carrier("", EVERYWHERE, 1.0, 1.0, CHANGE),)


def test_the_rest_of_a_drop_beside_the_levels_of_all_queries_is_the_change_of_mix():
    levels = [level("de", 0.5, 0.0), level("fr", 0.5, -0.004)]
    [mix] = carriers_of([levels], CHANGE)
    assert (mix.segment, mix.level, mix.queries_share) == ("", MIX, 0.0)
    assert mix.share == pytest.approx(0.95)  # 1 - 0.5 x 0.004 / 0.04
    assert mix.change == pytest.approx(0.95 * CHANGE)


def test_levels_of_only_some_queries_give_no_change_of_mix():
    levels = [level("de", 0.5, -0.06), level("fr", 0.2, 0.0)]
    assert carriers_of([levels], CHANGE) == (levels[0],)  # 75 %; the rest is of other levels


def test_the_segment_that_explains_most_is_named():
    locale = [level("de", 0.5, -0.05), level("fr", 0.5, -0.03)]
    device = [level("ios", 0.2, -0.2, "device"), level("web", 0.8, 0.0, "device")]
    assert carriers_of([locale, device], CHANGE) == (device[0],)
    assert carriers_of([device, locale], CHANGE) == (device[0],)
    assert carriers_of([], CHANGE) == ()
