"""The states of a model learner and the transitions between them.

A state follows from what a model learner stores, so it is not stored itself.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ModelState(Enum):
    """What a model learner does."""

    WITHOUT_FEATURES = "without_features"
    """No query has had features: there is nothing to learn from."""
    LEARNING = "learning"
    """It learns, and an experiment may start."""
    EXPERIMENT = "experiment"
    """It learns, and an experiment runs."""
    COOLING_DOWN = "cooling_down"
    """It learns, and no experiment may start yet."""
    FROZEN_EXPERIMENT = "frozen_experiment"
    """It does not learn any more; the experiment that runs continues."""
    FROZEN = "frozen"
    """It does not learn any more, and no experiment runs."""


class Event(Enum):
    """What changes the state of a model learner."""

    FEATURES = "features"
    """The first query with features."""
    EXPERIMENT_STARTED = "experiment_started"
    EXPERIMENT_ENDED = "experiment_ended"
    """The challenger was promoted, proposed or rejected."""
    COOLED_DOWN = "cooled_down"
    LEARNING_ENDED = "learning_ended"
    """The learner, or a query that it cannot use, has ended learning."""
    FREEZE = "freeze"
    """An operator command; it ends learning and the experiment."""
    ROLL_BACK = "roll_back"
    """An operator command; it begins a new epoch."""


_COMMANDS: Final = {Event.FREEZE: ModelState.FROZEN, Event.ROLL_BACK: ModelState.COOLING_DOWN}

TRANSITIONS: Final[Mapping[ModelState, Mapping[Event, ModelState]]] = {
    ModelState.WITHOUT_FEATURES: {
        Event.FEATURES: ModelState.LEARNING,
        Event.ROLL_BACK: ModelState.COOLING_DOWN,
    },
    ModelState.LEARNING: {
        Event.EXPERIMENT_STARTED: ModelState.EXPERIMENT,
        Event.LEARNING_ENDED: ModelState.FROZEN,
        **_COMMANDS,
    },
    ModelState.EXPERIMENT: {
        Event.EXPERIMENT_ENDED: ModelState.COOLING_DOWN,
        Event.LEARNING_ENDED: ModelState.FROZEN_EXPERIMENT,
        **_COMMANDS,
    },
    ModelState.COOLING_DOWN: {
        Event.COOLED_DOWN: ModelState.LEARNING,
        Event.LEARNING_ENDED: ModelState.FROZEN,
        **_COMMANDS,
    },
    ModelState.FROZEN_EXPERIMENT: {Event.EXPERIMENT_ENDED: ModelState.FROZEN, **_COMMANDS},
    ModelState.FROZEN: _COMMANDS,
}
"""All transitions. Only a new epoch under other rules leads back to WITHOUT_FEATURES."""

IS_FROZEN: Final = frozenset((ModelState.FROZEN, ModelState.FROZEN_EXPERIMENT))


class IllegalTransitionError(RuntimeError):
    """An event that cannot occur in the state of a model learner: an error in the program."""


def state_after(state: ModelState, event: Event) -> ModelState:
    """The next state.

    Raises:
        IllegalTransitionError: if the event cannot occur in this state.

    >>> state_after(ModelState.LEARNING, Event.EXPERIMENT_STARTED)
    <ModelState.EXPERIMENT: 'experiment'>
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransitionError(
            f"{event.value} cannot occur in the state {state.value} of a model learner"
        ) from None
