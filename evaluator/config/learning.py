"""The settings of learning: how weights are learned, and what they must show."""

from collections.abc import Collection
from dataclasses import dataclass

from evaluator.config import kinds
from evaluator.config.kinds import ConfigError, choice, integer, number
from evaluator.config.specs import setting as _setting
from evaluator.core.learning.learner import SCALES
from evaluator.core.learning.losses import LABEL_MODES, LOSSES
from evaluator.core.learning.optimisers import OPTIMIZERS, SCHEDULES

LEARNING = "Learning"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class LearningSettings:
    """A part of `Settings`."""

    learning: str = _setting(
        "off",
        LEARNING,
        choice("off", "propose", "auto"),
        "`propose` says which weights it would promote, `auto` promotes them "
        "([the leader](leader.md)); with either, `settled` has what can be learned from",
    )
    embedder: str = _setting(
        "ngrams",
        LEARNING,
        choice("ngrams", "minilm"),
        "what compares texts for [features](features.md#embedders) of described candidates; "
        "`minilm` needs `evaluator[embeddings]`",
    )
    loss: str = _setting(
        "softmax", LEARNING, choice(*LOSSES), "what `fit` makes small ([learning](learning.md))"
    )
    label_mode: str = _setting(
        "distribution",
        LEARNING,
        choice(*LABEL_MODES),
        "what `softmax` makes of grades; `sum` is the one for propensities",
    )
    optimizer: str = _setting("sgd", LEARNING, choice(*OPTIMIZERS), "how a gradient becomes a step")
    schedule: str = _setting(
        "constant",
        LEARNING,
        choice(*SCHEDULES),
        "`inv_sqrt` divides the rate by the root of 1 + the updates applied before",
    )
    learning_rate: float = _setting(
        0.1, LEARNING, number(above=0), "what the step is multiplied by"
    )
    l2: float = _setting(
        0.0, LEARNING, number(minimum=0), "factor of |w|^2, added to the loss once per update"
    )
    batch_queries: int = _setting(
        1, LEARNING, integer(1, 100_000), "consecutive groups per update, skipped ones counted"
    )
    scale: str = _setting(
        "none",
        LEARNING,
        choice(*SCALES),
        "`within_query` divides features by their standard deviation within groups, of which 50 "
        "come first",
    )
    clip_norm: float | None = _setting(
        None,
        LEARNING,
        kinds.none_or(number(above=0)),
        "longest gradient; a longer one is shortened to it",
        "1.0",
    )
    initial_weights: tuple[float, ...] = _setting(
        (),
        LEARNING,
        kinds.NUMBERS,
        "weights to begin with, one per feature, with commas; none: 0 each",
        "0.25,0.25,0.25,0.25",
    )
    gate_measure: str = _setting(
        "ndcg@10",
        LEARNING,
        kinds.LINE,
        "the measure that a challenger must be better in; one of measures",
    )
    gate_guardrails: tuple[tuple[str, float], ...] = _setting(
        (),
        LEARNING,
        kinds.NAMED_SHARES,
        "other measures, and how much worse their means may be ([the gate](gate.md#rules))",
        "mrr=0.01,top1=0.02",
    )
    gate_alpha: float = _setting(
        0.01,
        LEARNING,
        number(above=0),
        "largest chance that a challenger that is no better is ever promoted; below 1",
    )
    gate_min_traces: int = _setting(1_000, LEARNING, integer(0), "bets before a promotion")
    gate_min_age_ms: int = _setting(
        86_400_000, LEARNING, kinds.DURATION, "event time of an experiment before a promotion"
    )
    gate_cool_down_ms: int = _setting(
        86_400_000,
        LEARNING,
        kinds.DURATION,
        "event time between the end of one experiment and the beginning of the next",
    )
    source_weights: tuple[tuple[str, float], ...] = _setting(
        (),
        LEARNING,
        kinds.NAMED_SHARES,
        "`source` of judgments, and what one is worth; others are worth nothing then. None: all "
        "are worth the same, which `auto` refuses",
        "human=1,click=0.2",
    )
    source_max_judgments: tuple[tuple[str, int], ...] = _setting(
        (),
        LEARNING,
        kinds.NAMED_COUNTS,
        "judgments of a source that count in full in one interval; more of them share that much. "
        "None: no cap",
        "click=1000",
    )
    source_max_share: tuple[tuple[str, float], ...] = _setting(
        (),
        LEARNING,
        kinds.NAMED_SHARES,
        "largest share of one interval's weight that a source may have. None: no cap",
        "click=0.2",
    )
    learning_interval_ms: int = _setting(
        3_600_000,
        LEARNING,
        kinds.DURATION,
        "event time after which bets are made, weights change and the state is written; 0 is as 1",
    )

    @property
    def learns(self) -> bool:
        """Whether `settled` has what can be learned from."""
        return self.learning != "off"

    def check_learning(self, measures: Collection[str]) -> None:
        """Raises ConfigError if settings contradict each other."""
        if self.label_mode != LABEL_MODES[0] and self.loss != "softmax":
            raise ConfigError(
                f"label_mode is {self.label_mode}, which says something of loss = softmax alone, "
                f"and loss is {self.loss}. Leave label_mode out, or set loss to softmax."
            )
        if not self.learns:
            return
        for name, role in (
            (self.gate_measure, "gate_measure"),
            *((name, "gate_guardrails") for name, _ in self.gate_guardrails),
        ):
            if name not in measures:
                raise ConfigError(
                    f"{role} names {name!r}, which is not in measures. Choose from "
                    f"{', '.join(map(repr, measures))}, or add it there."
                )
        if self.gate_measure in dict(self.gate_guardrails):
            raise ConfigError(
                f"{self.gate_measure} is the gate_measure, so it cannot be among gate_guardrails. "
                "Leave it out there."
            )
        if self.gate_alpha >= 1:
            raise ConfigError(f"gate_alpha is {self.gate_alpha}; set it below 1, e.g. 0.01.")
        strangers = [
            source
            for source, _ in (*self.source_max_judgments, *self.source_max_share)
            if source not in dict(self.source_weights)
        ]
        if strangers:
            raise ConfigError(
                f"source_max_judgments or source_max_share names {strangers[0]!r}, which is not "
                "in source_weights. Say there what a judgment of it is worth, e.g. "
                f"{strangers[0]}=1."
            )
        if self.learning == "auto" and not any(weight for _, weight in self.source_weights):
            raise ConfigError(
                "learning is auto, and source_weights trusts nobody, so anybody who can send "
                "judgments could promote weights. Name a source, e.g. human=1, or set learning "
                "to propose."
            )
