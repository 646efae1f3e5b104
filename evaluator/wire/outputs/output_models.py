"""Models of outputs, for documentation, schemas and tests; further members are refused.

The worker does not use them: it encodes outputs in columns (`encoding.py`).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from evaluator.core.types.candidates import CandidateKind
from evaluator.wire.messages.models import (
    Grade,
    Id,
    LongText,
    Name,
    Number,
    Propensity,
    TimestampMs,
)
from evaluator.wire.outputs.sizes import MAX_OFFERED_BYTES, MAX_OUTPUT_BYTES

Reason = Literal[
    "oversize", "decode", "schema", "version", "limit", "non_finite", "future", "mapping",
    "registry",
    "late", "orphan", "conflicting", "over_limit", "oversize_output",
]  # fmt: skip
Count = Annotated[int, Field(ge=0)]
Value = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ValidGrade = Annotated[Grade, Field(ge=0)]
TooLarge = Annotated[int, Field(ge=1)]
Values = dict[str, dict[str, Value]]
Segments = dict[Name, Annotated[Name, Field(min_length=1)]]
_SEGMENTS = "With the setting segments: level by segment; missing and empty levels are left out."
TopCandidate = tuple[Id, Number | None]


class OutputModel(BaseModel):
    """Configuration of all outputs."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )


class Evaluation(OutputModel):
    """Running values of one query; of several revisions the highest counts."""

    trace_id: Id
    node_id: Id
    event_time_ms: TimestampMs
    model: str
    variant: str
    query: str | None = Field(default=None, description="Missing with emit_query = off.")
    revision: Count = Field(description="Number of judgments applied.")
    segments: Segments | None = Field(default=None, description=_SEGMENTS)
    grades: dict[Id, ValidGrade] = Field(description="Merged grades; withdrawn ones are missing.")
    rank: dict[str, int | None] = Field(
        description="By ranker: rank of the first relevant candidate, or null."
    )
    top3: dict[str, Annotated[list[TopCandidate], Field(max_length=3)]] = Field(
        description="By ranker: the first three candidates, each with its score or null."
    )
    values: Values = Field(description="By ranker and measure; empty without grades.")
    too_large: TooLarge | None = Field(
        default=None, description="In a stub: bytes of the record; query and grades are left out."
    )


class SettledGraph(OutputModel):
    """A candidate that is a graph; only the numbers of nodes and edges are kept."""

    type: Name
    text: LongText
    n_nodes: Count
    n_edges: Count


class Settled(OutputModel):
    """One settled query; per task in order, n = 0, 1, 2 ..."""

    n: Count
    task: Count
    trace_id: Id
    node_id: Id
    event_time_ms: TimestampMs
    settled_time_ms: Count = Field(description="event_time_ms + maturity_ms")
    offset: Count = Field(description="Offset of the ranking in its log.")
    model: str
    variant: str
    segments: Segments | None = Field(default=None, description=_SEGMENTS)
    silent: Literal[True] | None = Field(
        default=None,
        description="With silence = zero: no candidate was graded; exposed ones have grade 0.",
    )
    grades: dict[Id, ValidGrade] = Field(
        description="Grades; empty if unjudged, or silent without candidates."
    )
    values: Values = Field(description="By ranker and measure; empty if unjudged.")
    exposed: Annotated[str, Field(pattern="^[0-9a-f]{1,250}$")] | None = Field(
        default=None,
        description="If the ranking states exposure: a hexadecimal number; bit r, counted from 0 "
        "at the lowest, is 1 if the candidate at rank r + 1 of the served order was exposed.",
    )
    logged: dict[Id, tuple[Annotated[int, Field(ge=1)], Propensity | None]] | None = Field(
        default=None,
        description="If the ranking states exposure or propensities: rank in the served order and "
        "propensity of each graded candidate that was ranked.",
    )
    sources: dict[str, Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        description="While learning is on: number of judgments applied in time, by source.",
    )
    candidate_ids: list[Id] | None = Field(
        default=None,
        description="While learning is on: candidates with features or descriptions.",
    )
    feature_names: list[str] | None = Field(
        default=None, description="While learning is on; f0, f1, ... for features without names."
    )
    features: list[list[Number]] | None = Field(
        default=None, description="While learning is on: a row per candidate."
    )
    propensities: list[Number] | None = Field(
        default=None, description="While learning is on, if present: parallel to candidate_ids."
    )
    candidate_kind: CandidateKind | None = Field(
        default=None,
        description="While learning is on: kind of described candidates of a ranking without "
        "features.",
    )
    query: str | None = Field(
        default=None, description="Of described candidates, also with emit_query = off."
    )
    descriptions: list[LongText] | None = Field(
        default=None,
        description="Of described candidates that are tools; empty for a candidate without one.",
    )
    graphs: list[SettledGraph] | None = Field(
        default=None, description="Of described candidates that are graphs."
    )
    too_large: TooLarge | None = Field(
        default=None,
        description="Number of omitted bytes: of training members of more than "
        f"{MAX_OFFERED_BYTES}; in a stub, which lacks the grades too, of a record of more than "
        f"{MAX_OUTPUT_BYTES}.",
    )


class WatermarkRecord(OutputModel):
    """In the topic `settled`: the progress of a task."""

    task: Count
    watermark_ms: Count = Field(description="Every later record settles at this time or later.")
    n: Count = Field(description="Number of the next settled query.")


class Window(OutputModel):
    """Exact sums of one event-time window; final ones never change."""

    start_ms: TimestampMs
    end_ms: Count
    model: str
    variant: str
    ranker: str
    measure: str
    queries: Count
    sum_units: Count = Field(description="Sum of the values in units of 2^-40.")
    final: bool | None = Field(default=None, description="Only in the topic, not in files.")


class DeadLetterHeaders(OutputModel):
    """Headers of a dead letter, all text; key and value are the original bytes."""

    topic: str
    partition: Annotated[str, Field(pattern="^[0-9]+$")]
    offset: Annotated[str, Field(pattern="^[0-9]+$")] | None = Field(
        default=None, description="Missing with oversize_output, which concerns an output topic."
    )
    reason: Reason
    detail: str = Field(description="The reason, for operators.")
    truncated: Annotated[str, Field(pattern="^[0-9]+$")] | None = Field(
        default=None, description="Original number of bytes of a truncated or omitted value."
    )
    key_truncated: Annotated[str, Field(pattern="^[0-9]+$")] | None = Field(
        default=None, description="Original number of bytes of a truncated or omitted key."
    )
