"""The sentence about an alarm, word by word."""

import pytest

from evaluator.alarm_sentence import alarm_sentence, alert_of
from evaluator.core.alarms.series import Alarm, Carrier
from evaluator.core.online.carriers import EVERYWHERE, MIX
from evaluator.core.online.watched import SeriesName
from tests.deploy.rules import rules_of

NAME = SeriesName("gamma", "prod", "served", "ndcg@10", "", "", "own")
SINCE_MS = 1_763_712_000_000  # 2025-11-21 08:00, a Friday
ALARM = Alarm(SINCE_MS + 11_700_000, SINCE_MS, 6, 0.031, 0.571, 0.602, 0.006, 1.7, 41_210)
FIGURES = "is 0.5710, expected 0.6020: lower by 0.0310 (standard error 0.0060)"
REST = (
    "over 6 h with 41,210 queries, since about Fri 2025-11-21 08:00 UTC; "
    "evidence 1.7 times the limit of an alarm"
)


@pytest.mark.parametrize(
    ("changes", "subject", "reference"),
    [
        ({}, "ndcg@10 of gamma/prod (served)", "than its past weeks explain"),
        (
            {"segment": "locale", "level": "de", "model": ""},
            "ndcg@10 of (unnamed)/prod (served), locale=de,",
            "than its past weeks explain",
        ),
        (
            {"kind": "pair", "ranker": "served-bm25"},
            "The difference served-bm25 of ndcg@10 of gamma/prod",
            "than its past weeks explain",
        ),
        (
            {"kind": "variants", "variant": "canary-prod"},
            "The difference canary-prod of ndcg@10 of gamma (served)",
            "than the other variant in the same hours",
        ),
        ({"kind": "constant"}, "ndcg@10 of gamma/prod (served)", "than its objective"),
        (
            {"measure": "coverage", "ranker": ""},
            "The share of the queries of gamma/prod that is judged in time",
            "than its past weeks explain",
        ),
    ],
)
def test_a_sentence_has_what_fell_from_where_by_how_much_and_since_when(
    changes, subject, reference
):
    name = NAME._replace(**changes)
    assert alarm_sentence(name, ALARM) == f"{subject} {FIGURES} {reference}, {REST}."
    assert alert_of(name) in rules_of("alert")


def test_a_sentence_has_the_largest_carriers_and_what_to_check_first():
    carried = (
        Carrier("locale", "de", 0.5, 0.24, -0.112),
        Carrier("", MIX, 0.3, 0.0, -0.01),
        *(Carrier("locale", f"l{n}", 0.05, 0.1, -0.001) for n in range(4)),
    )
    alarm = ALARM._replace(carried_by=carried, window_hours=168)
    assert alarm_sentence(NAME, alarm, "coverage") == (
        f"ndcg@10 of gamma/prod (served) {FIGURES} than its past weeks explain, "
        f"{REST.replace('6 h', '7 days')}; carried by locale=de (50%, -0.1120), "
        "change of mix (30%), locale=l0 (5%, -0.0010), 3 more. The coverage has an alarm too: "
        "check it first."
    )
    everywhere = ALARM._replace(carried_by=(Carrier("", EVERYWHERE, 1.0, 1.0, -0.03),))
    assert alarm_sentence(NAME, everywhere).endswith("; carried by everywhere (100%).")


def test_a_name_cannot_write_to_a_terminal():
    text = alarm_sentence(NAME._replace(model="a\x1b[2J\n"), ALARM)
    assert text.startswith("ndcg@10 of a\\x1b[2J\\n/prod")
