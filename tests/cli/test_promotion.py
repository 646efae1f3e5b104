"""The rules of the leader from settings."""

import pytest
from msgspec.structs import replace

from evaluator.cli import leader
from evaluator.cli.exits import UsageError
from evaluator.cli.leader import record_writer_of, rules_of, source_weights_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.promotion.source_weights import SourceRule

WEIGHTED_SOURCES = Settings(
    learning="auto",
    source_weights=(("human", 1.0), ("click", 0.5)),
    source_max_judgments=(("click", 1000),),
    source_max_share=(("click", 0.2),),
)


def test_sources_have_the_caps_of_a_learning_interval():
    trust = source_weights_of(WEIGHTED_SOURCES)
    assert trust.sources == {"human": SourceRule(1.0), "click": SourceRule(0.5, 1000, 0.2)}
    assert rules_of(WEIGHTED_SOURCES, measure_set(WEIGHTED_SOURCES)).source_weights == trust


def test_experiments_that_end_before_a_promotion_is_possible_are_refused():
    for settings in ({"gate_max_age_ms": 7_200_000}, {"gate_min_age_ms": 72_000_000}):
        wrong = replace(WEIGHTED_SOURCES, **settings)
        with pytest.raises(UsageError, match=r"Set gate_max_age_ms to more, e\.g\. 72"):
            rules_of(wrong, measure_set(wrong))
    longer = replace(WEIGHTED_SOURCES, gate_max_age_ms=7_200_001)
    assert rules_of(longer, measure_set(longer)).gate.max_age_ms == 7_200_001


def test_every_setting_that_a_leader_uses_is_in_its_fingerprint():
    def fingerprint(settings):
        return record_writer_of(settings, rules_of(settings, measure_set(settings))).fingerprint

    others = [
        Settings(learning="propose", source_weights=WEIGHTED_SOURCES.source_weights),
        Settings(learning="auto", source_weights=(("human", 1.0),)),
        Settings(learning="auto", source_weights=WEIGHTED_SOURCES.source_weights),
        WEIGHTED_SOURCES,
        replace(WEIGHTED_SOURCES, implicit_sources=("click",)),
        replace(WEIGHTED_SOURCES, ips_clip=50.0),
    ]
    assert len({fingerprint(each) for each in others}) == len(others)


def test_later_settings_with_their_defaults_are_not_in_the_fingerprint(monkeypatch):
    meanings = []
    monkeypatch.setattr(leader, "digest_of", lambda meaning: str(meanings.append(meaning)))
    for settings in (WEIGHTED_SOURCES, replace(WEIGHTED_SOURCES, ips_clip=50.0)):
        record_writer_of(settings, rules_of(settings, measure_set(settings)))
    assert meanings[0].keys() ^ meanings[1].keys() == {"ips_clip"}


def test_the_best_grade_is_one_of_the_rules_and_in_every_record():
    for best in (2, 5):
        settings = Settings(learning="propose", map_graded_max_grade=best)
        rules = rules_of(settings, measure_set(settings))
        record_writer = record_writer_of(settings, rules)
        assert (rules.max_grade, record_writer.settings["map_graded_max_grade"]) == (best, best)
