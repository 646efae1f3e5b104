"""The states of a model learner, and the events that each of them allows."""

from random import Random

import pytest

from evaluator.core.online.events import Command
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.states import (
    IS_FROZEN,
    TRANSITIONS,
    Event,
    ModelState,
    state_after,
)
from evaluator.core.types.transitions import IllegalTransition
from tests.core.learned import N_TASKS, NAMES, interleaved, rules, world

WITH_EXPERIMENT = {ModelState.EXPERIMENT, ModelState.FROZEN_EXPERIMENT}


def test_every_state_has_its_transitions_and_can_be_reached():
    assert set(TRANSITIONS) == set(ModelState)
    reached = {after for of_state in TRANSITIONS.values() for after in of_state.values()}
    assert reached == set(ModelState) - {ModelState.WITHOUT_FEATURES}


def test_an_event_without_a_transition_raises():
    for state in ModelState:
        for event in set(Event) - set(TRANSITIONS[state]):
            with pytest.raises(IllegalTransition, match=f"{event.name} cannot occur"):
                state_after(state, event)


def test_an_experiment_starts_only_while_learning_and_ends_only_while_it_runs():
    starts = {state for state, of in TRANSITIONS.items() if Event.EXPERIMENT_STARTED in of}
    ends = {state for state, of in TRANSITIONS.items() if Event.EXPERIMENT_ENDED in of}
    assert starts == {ModelState.LEARNING}
    assert ends == WITH_EXPERIMENT


def test_a_frozen_model_learner_learns_again_only_after_a_rollback():
    for state in IS_FROZEN:
        left = {event for event, after in TRANSITIONS[state].items() if after not in IS_FROZEN}
        assert left == {Event.ROLL_BACK}


@pytest.mark.slow(alone=False)
def test_a_model_learner_has_the_state_that_follows_from_its_members():
    """Also after commands, and of a successor at the end of each interval."""
    made = rules(gate={"cool_down_ms": 50_000})
    leader, seen = OnlineLearner(made, n_tasks=N_TASKS), set[ModelState]()
    commands = {
        10: Command(1, "freeze", "a"),
        12: Command(2, "roll_back", "b", (1.0, 0.0, 0.0), NAMES),
    }
    n_intervals = 0
    for batch in interleaved(world(1, 1_500), Random(3)):
        for result in leader.receive(batch):
            n_intervals += 1
            if n_intervals in commands:
                leader.accept_command("m", commands[n_intervals])
            state = result.state["models"][0]
            successor = ModelLearner.load(state)
            runs, frozen = state["gate"]["experiment"] is not None, state["learner"]["frozen"]
            assert (successor.current in WITH_EXPERIMENT) == runs
            assert (successor.current in IS_FROZEN) == bool(frozen)
            seen.add(successor.current)
    assert n_intervals > 15
    assert {ModelState.EXPERIMENT, ModelState.COOLING_DOWN, ModelState.FROZEN} <= seen
