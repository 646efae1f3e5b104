"""The weights record: linear weights for raw features, with their origin and checksum."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from evaluator.core.features import SuccessTable
from evaluator.core.learning.transforms import NO_TRANSFORMS, Transform, Transforms
from evaluator.core.types.candidates import CandidateKind
from evaluator.wire.canonical import checksum_of
from evaluator.wire.messages.limits import MAX_FEATURES
from evaluator.wire.messages.models import Name, Number, optional
from evaluator.wire.reading import Reader, refused_as
from evaluator.wire.weights.checksum import MAX_WEIGHTS_BYTES, WeightsRefused, checksum_in

WEIGHTS_FORMAT: Final = 1

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Unbounded = Annotated[int, Field(ge=0)]


class EpochHistory(BaseModel):
    """One pass over the groups."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    epoch: Annotated[int, Field(ge=1)]
    mean_loss: Number | None = Field(
        description="Mean over the groups that counted, each before its update, without the part "
        "of l2; null if none counted."
    )
    groups: Count = Field(description="Number of groups that counted.")
    skipped: Count = Field(default=0, description="Groups without two candidates or a positive.")
    validation_loss: Number | None = optional(
        "Mean over the groups of the validation, after the epoch, without the part of l2."
    )


class SuccessRates(BaseModel):
    """Past success of tools and types of graphs: the table from which features are computed."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    format: Literal[1]
    successes: list[
        Annotated[tuple[CandidateKind, Name, _Unbounded, Count], Field(strict=False)]
    ] = Field(description="Kind, name or type, success in units of 2^-40, queries.")
    over_limit: Count = Field(description="Queries of names beyond the limit.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        SuccessTable.load(self.model_dump())
        return self


class FeatureTransform(BaseModel):
    """The transform of a feature before its weight: a clip to low and high, then log1p."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    low: Number | None
    high: Number | None
    log1p: bool = Field(description="sign(x) ln(1 + |x|)")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        Transform.checked(self.low, self.high, self.log1p)
        return self


class Weights(BaseModel):
    """Linear weights for raw features: a score is the sum of weight x feature."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )

    format: Literal[1]
    model: str = Field(default="", description="The model.")
    epoch: Count = Field(default=0, description="Grows with every roll-back.")
    version: Count = Field(default=0, description="Grows with every record of a model.")
    parent: str | None = optional("Checksum of the previous record of the model.")
    weights: Annotated[list[Number], Field(min_length=1, max_length=MAX_FEATURES)] = Field(
        description="In raw feature units, in the order of feature_names."
    )
    feature_names: Annotated[list[str], Field(min_length=1, max_length=MAX_FEATURES)] = Field(
        description="f0, f1, ... for features without names."
    )
    transforms: dict[str, FeatureTransform] | None = optional(
        "Transforms of features before their weights; missing without any."
    )
    scale: list[Number] | None = optional("Standard deviations of features within queries.")
    updates: Count | None = optional("Number of updates so far.")
    settings: dict[str, Any] | None = optional("Settings of learning.")
    status: str | None = optional(
        "Set by the leader: initial, promoted and rolled_back are live; challenger, "
        "proposed, rejected and frozen are for information."
    )
    of_version: Count | None = optional("The challenger that was proposed, promoted or rejected.")
    reason: str | None = optional(
        "Reason of a freeze; undecided for a challenger whose experiment ended by its age."
    )
    feature_hash: str | None = optional("SHA-256 of the feature_names as JSON.")
    ranges: dict[str, Any] | None = optional("Offsets of settled queries that were learned from.")
    evidence: dict[str, Any] | None = optional("Evidence of an experiment that has ended.")
    event_time_ms: _Unbounded | None = optional(
        "Settled time of the last query that was learned from."
    )
    in_force_ms: _Unbounded | None = optional(
        "Rankings of this event time or later are measured with these weights."
    )
    history: list[EpochHistory] | None = optional("Epochs of `evaluator fit`.")
    validation: dict[str, Any] | None = optional(
        "Validation of `evaluator fit`: the number of its groups, the seed of their choice, and "
        "the epoch with the best value on them, which has these weights."
    )
    success_rates: SuccessRates | None = optional(
        "The table from which features of described candidates are computed; missing if no "
        "features are computed or the table is empty."
    )
    checksum: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = optional(
        "SHA-256, in hexadecimal, of the record without this member in the form of RFC 8785."
    )

    @model_validator(mode="after")
    def _is_parallel(self) -> Self:
        if len(self.weights) != len(self.feature_names):
            raise PydanticCustomError(
                "parallel",
                "{n_weights} weights for {n_names} feature_names; they must be parallel",
                {"n_weights": len(self.weights), "n_names": len(self.feature_names)},
            )
        return self

    @property
    def of_features(self) -> Transforms:
        given = self.transforms or {}
        found = {name: Transform(of.low, of.high, of.log1p) for name, of in given.items()}
        return found or NO_TRANSFORMS

    def table(self) -> SuccessTable | None:
        """The table of success rates, if there is one."""
        given = self.success_rates
        return None if given is None else SuccessTable.load(given.model_dump())


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record and its checksum. Raises ValidationError if it is not a weights record."""
    whole = {**record, "checksum": checksum_of(record)}
    Weights.model_validate(whole)
    return whole


read_record: Final[Reader[Any]] = Reader(
    Any, WeightsRefused, "no JSON", max_bytes=MAX_WEIGHTS_BYTES
)


def read_weights(text: bytes) -> Weights:
    """The weights in a file or a message, with their checksum, which may be missing there.

    Raises:
        WeightsRefused: if it is not a weights record, or its checksum is of another one.
    """
    record = read_record(text)
    try:
        weights = Weights.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WeightsRefused(
            f"not a weights record: {where} {first['msg']}.".replace("  ", " ")
        ) from None
    with refused_as(WeightsRefused, "not a weights record"):
        checksum = checksum_of(record)
    if weights.checksum not in (None, checksum):
        raise WeightsRefused(
            "its checksum is that of another record, so it was changed. Restore it, or leave the "
            "member checksum out."
        )
    return weights.model_copy(update={"checksum": checksum})


def read_live(value: bytes) -> Weights:
    """The weights in a record of a topic, which always has a checksum. Raises WeightsRefused."""
    checksum_in(value)
    return read_weights(value)
