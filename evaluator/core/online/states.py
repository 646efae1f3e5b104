"""The states of a model learner and the transitions between them.

The state is derived from the stored members of a model learner, so it is not stored.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from evaluator.core.types.transitions import IllegalTransition


class ModelState(Enum):
    """The state of a model learner.

    WITHOUT_FEATURES: no query has had features, so there is nothing to learn from.
    LEARNING: it learns, and an experiment may start.
    EXPERIMENT: it learns, and an experiment runs.
    COOLING_DOWN: it learns, and no experiment may start yet.
    FROZEN_EXPERIMENT: it does not learn any more; the experiment that runs continues.
    FROZEN: it does not learn any more, and no experiment runs.
    """

    WITHOUT_FEATURES = auto()
    LEARNING = auto()
    EXPERIMENT = auto()
    COOLING_DOWN = auto()
    FROZEN_EXPERIMENT = auto()
    FROZEN = auto()


class Event(Enum):
    """An event that changes the state of a model learner.

    FEATURES is the first query with features, LEARNING_ENDED a learner or a query that ends
    learning. FREEZE and ROLL_BACK are operator commands.
    """

    FEATURES = auto()
    EXPERIMENT_STARTED = auto()
    EXPERIMENT_ENDED = auto()
    COOLED_DOWN = auto()
    LEARNING_ENDED = auto()
    FREEZE = auto()
    ROLL_BACK = auto()


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


def state_after(state: ModelState, event: Event) -> ModelState:
    """The next state.

    Raises:
        IllegalTransition: if the event cannot occur in this state.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(
            f"{event.name} cannot occur in the state {state.name} of a model learner"
        ) from None
