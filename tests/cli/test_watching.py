"""What alarms watch, from settings: each series once."""

from evaluator.cli.watching import watch_rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set


def test_an_objective_under_two_spellings_is_one_series():
    made = Settings(
        measures=("top1", "hit@1"),
        alarm_measures=("top1", "hit@1"),
        alarm_objectives=(("top1", 0.3), ("hit@1", 0.4)),
    )
    templates = watch_rules_of(made, measure_set(made)).templates()
    assert len(templates) == len(set(templates)) == 3
    assert [of.kind for of in templates] == ["own", "constant", "own"]
