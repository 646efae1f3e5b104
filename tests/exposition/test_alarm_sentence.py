"""The sentence about an alarm, word by word."""

import pytest

from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.online.carriers import EVERYWHERE, MIX
from evaluator.core.online.watched import SeriesName
from evaluator.exposition.alarm_sentence import alarm_sentence, alert_of
from tests.deploy.rules import rules_of

NAME = SeriesName("gamma", "prod", "served", "ndcg@10", "", "", "own")
SINCE_MS = 1_763_712_000_000  # 2025-11-21 08:00, a Friday
ALARM = Alarm(SINCE_MS + 11_700_000, SINCE_MS, 6, 0.031, 0.571, 0.602, 0.006, 1.7, 41_210)
FIGURES = "is 0.571, expected 0.602"
REST = (
    "lower by 0.031 (standard error 0.006) over the last 6 h, since about Fri 2025-11-21 08:00 UTC "
    "(3 h before the alarm). Evidence 1.7 times the limit of an alarm; 41,210 queries"
)
UNCLEAR = "not clear yet whether it is the model."
WEEK_MS = 7 * 86_400_000
FIRST_MS = SINCE_MS - 5 * WEEK_MS - 4 * 86_400_000 - 8 * 3_600_000  # Monday 2025-10-13


@pytest.mark.parametrize(
    ("changes", "subject", "reference"),
    [
        ({}, "ndcg@10 of gamma/prod (served)", "for these hours"),
        (
            {"segment": "locale", "level": "de", "model": ""},
            "ndcg@10 of (unnamed)/prod (served), locale=de,",
            "for these hours",
        ),
        (
            {"kind": "pair", "ranker": "served-bm25"},
            "The difference served-bm25 of ndcg@10 of gamma/prod",
            "for these hours",
        ),
        (
            {"kind": "variants", "variant": "canary-prod"},
            "The difference canary-prod of ndcg@10 of gamma (served)",
            "in the same hours of the other variant",
        ),
        ({"kind": "constant"}, "ndcg@10 of gamma/prod (served)", "by its objective"),
        (
            {"measure": "coverage", "ranker": ""},
            "The share of the queries of gamma/prod that is judged in time",
            "for these hours",
        ),
    ],
)
def test_a_sentence_has_the_series_and_its_former_value_drop_and_onset(changes, subject, reference):
    name = NAME._replace(**changes)
    assert alarm_sentence(name, ALARM) == f"{subject} {FIGURES} {reference}: {REST}."
    assert alert_of(name) in rules_of("alert")


def test_a_sentence_has_the_largest_carriers_and_the_mean_change_of_the_rest():
    carried = (
        Carrier("locale", "de", 0.5, 0.2, -0.1),
        Carrier("", MIX, 0.25, 0.0, -0.01),
        *(Carrier("locale", f"{n}%", 0.05, 0.1, -0.02) for n in range(4)),
    )
    alarm = ALARM._replace(carried_by=carried, window_hours=168)
    # The whole fell by 0.1 x 0.2 / 0.5 = 0.04. The rest has 1 - 0.5 - 0.25 - 0.05 = 0.2 of that on
    # 1 - 0.2 - 0.1 = 0.7 of the queries: 0.04 x 0.2 / 0.7 = 0.0114.
    assert alarm_sentence(NAME, alarm, "coverage") == (
        f"ndcg@10 of gamma/prod (served) {FIGURES} for these hours: "
        f"{REST.replace('6 h', '7 days')}. Carried by: locale=de 50 % (-0.100 on 20 % of the "
        "queries), change of mix 25 %, locale=0% 5 % (-0.020 on 10 % of the queries), rest -0.011. "
        "The coverage has an alarm too: check it first."
    )
    everywhere = ALARM._replace(carried_by=(Carrier("", EVERYWHERE, 1.0, 1.0, -0.03),))
    assert alarm_sentence(NAME, everywhere).endswith(". Carried by: everywhere 100 %.")
    mix = ALARM._replace(carried_by=(Carrier("", MIX, 0.8, 0.0, -0.024),))  # of 0.03
    assert alarm_sentence(NAME, mix).endswith("Carried by: change of mix 80 %, rest -0.006.")
    nothing = ALARM._replace(carried_by=(Carrier("locale", "de", 0.0, 0.0, 0.0),))
    assert alarm_sentence(NAME, nothing) == alarm_sentence(NAME, ALARM)


@pytest.mark.parametrize(
    ("change", "se", "expected"),
    [
        (-0.03, 0.004, "served-bm25 fell by 0.030 too: it is the model, not the traffic."),
        (-0.002, 0.005, "served-bm25 did not fall (-0.002): traffic, season or judges."),
        (-0.01, 0.001, "served-bm25 fell by 0.010, less than half: not the model alone."),
        (
            -0.03,  # beyond half of the drop, and not beyond chance
            0.02,
            f"served-bm25 changed by -0.030 (standard error 0.020): {UNCLEAR}",
        ),
        (
            -0.01,  # beyond chance; half of the drop, 0.0155, is within it
            0.004,
            f"served-bm25 changed by -0.010 (standard error 0.004): {UNCLEAR}",
        ),
    ],
)
def test_a_sentence_has_the_change_of_the_pair(change, se, expected):
    context = Context(pair="served-bm25", pair_change=change, pair_se=se)
    assert alarm_sentence(NAME, ALARM._replace(context=context)).endswith(f"queries. {expected}")


@pytest.mark.parametrize(
    ("weeks", "expected"),
    [
        ((0, 1, 2, 3), "13 Oct to 3 Nov"),
        ((0, 2), "13 Oct, 27 Oct"),
        ((3,), "3 Nov"),
    ],
)
def test_a_sentence_has_the_judged_share_and_the_reference_weeks(weeks, expected):
    weeks_ms = tuple(FIRST_MS + week * WEEK_MS for week in weeks)
    alarm = ALARM._replace(context=Context(0.8, 0.8141, weeks_ms=weeks_ms))
    assert alarm_sentence(NAME, alarm).endswith(
        f"41,210 queries, judged 0.80 (usual 0.81). Reference: weeks of {expected}."
    )
    alarm = ALARM._replace(context=Context(0.8))  # the share has no past yet
    assert alarm_sentence(NAME, alarm).endswith("41,210 queries, judged 0.80.")


def test_a_name_cannot_contain_terminal_escapes():
    text = alarm_sentence(NAME._replace(model="a\x1b[2J\n"), ALARM)
    assert text.startswith("ndcg@10 of a\\x1b[2J\\n/prod")
