"""From settings to the rules of the steward."""

from evaluator.cli.stewardship import rules_of, scribe_of, trust_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.trust import SourceRule

TRUSTING = Settings(
    learning="auto",
    trusted_sources=(("human", 1.0), ("click", 0.5)),
    trusted_max_judgments=(("click", 1000),),
    trusted_max_share=(("click", 0.2),),
)


def test_sources_have_the_caps_that_were_set_for_a_turn():
    trust = trust_of(TRUSTING)
    assert trust.sources == {"human": SourceRule(1.0), "click": SourceRule(0.5, 1000, 0.2)}
    assert trust.window_ms == TRUSTING.turn_ms
    assert rules_of(TRUSTING, measure_set(TRUSTING)).trust == trust


def test_every_setting_that_a_steward_goes_by_is_in_its_lineage():
    def lineage(settings):
        return scribe_of(settings, rules_of(settings, measure_set(settings))).lineage

    others = [
        Settings(learning="propose", trusted_sources=TRUSTING.trusted_sources),
        Settings(learning="auto", trusted_sources=(("human", 1.0),)),
        Settings(learning="auto", trusted_sources=TRUSTING.trusted_sources),
        TRUSTING,
    ]
    assert len({lineage(each) for each in others}) == len(others)


def test_the_best_grade_is_among_the_rules_and_stands_in_every_record():
    for best in (2, 5):
        settings = Settings(learning="propose", map_graded_max_grade=best)
        rules = rules_of(settings, measure_set(settings))
        scribe = scribe_of(settings, rules)
        assert (rules.max_grade, scribe.settings["map_graded_max_grade"]) == (best, best)
