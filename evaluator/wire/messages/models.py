"""Models of rankings and judgments: the definition of a well-formed message.

Pydantic validates them, after the strict JSON reader of `strict.py`; the compiled decoder accepts
no message that these models refuse. Members are optional unless required, a null member is a
missing one, and unknown members are accepted.
"""

from collections.abc import Sequence
from typing import Annotated, Any, LiteralString, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.features import CandidateKind, Described, Graph
from evaluator.core.measures import MAX_GRADE
from evaluator.core.types.records import Levels
from evaluator.wire.messages.limits import (
    MAX_CANDIDATES,
    MAX_DESCRIPTION_BYTES,
    MAX_EDGES,
    MAX_FEATURES,
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    MAX_NODES,
    MAX_RANK,
    MAX_SCORERS,
    SCHEMA_VERSION,
    is_scorer_name,
)


def _error(kind: LiteralString, message: str) -> PydanticCustomError:
    """An error with this text; braces in it are literal."""
    return PydanticCustomError(kind, "{message}", {"message": message})


def _schema_version(version: int) -> int:
    if version != SCHEMA_VERSION:
        raise _error("version", f"{version} is not known here; this evaluator reads version 1")
    return version


def _at_most(max_bytes: int) -> AfterValidator:
    """A limit in bytes of UTF-8; `max_length` of the field counts characters, for schemas."""

    def checked(text: str) -> str:
        n_bytes = len(text.encode("utf-8", "surrogatepass"))
        if n_bytes > max_bytes:
            raise _error("limit", f"must have at most {max_bytes} bytes of UTF-8, not {n_bytes}")
        return text

    return AfterValidator(checked)


def _text(max_bytes: int, min_length: int | None = None) -> Any:
    description = f"At most {max_bytes} bytes of UTF-8; maxLength counts characters."
    return Field(min_length=min_length, max_length=max_bytes, description=description)


def optional(description: str) -> Any:
    """A member that may be missing or null."""
    return Field(default=None, description=description)


SchemaVersion = Annotated[
    int, Field(json_schema_extra={"const": SCHEMA_VERSION}), AfterValidator(_schema_version)
]
Id = Annotated[str, _text(MAX_ID_BYTES, min_length=1), _at_most(MAX_ID_BYTES)]
Name = Annotated[str, _text(MAX_NAME_BYTES), _at_most(MAX_NAME_BYTES)]
LongText = Annotated[str, _text(MAX_DESCRIPTION_BYTES), _at_most(MAX_DESCRIPTION_BYTES)]
TimestampMs = Annotated[int, Field(ge=0, le=MAX_TIMESTAMP_MS)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=1, le=MAX_RANK)]
Count = Annotated[int, Field(ge=0, le=MAX_RANK)]
Grade = Annotated[float, Field(le=MAX_GRADE, allow_inf_nan=False)]
Propensity = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
FeatureRow = Annotated[list[Number | None], Field(max_length=MAX_FEATURES)]
T = TypeVar("T")
PerCandidate = Annotated[list[T], Field(max_length=MAX_CANDIDATES)]


class Message(BaseModel):
    """Members of rankings and judgments."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        frozen=True,
        protected_namespaces=(),
        defer_build=True,  # most workers read no message with it
    )

    schema_version: SchemaVersion
    trace_id: Id = Field(description="The trace; also the key of the record.")
    node_id: Id = Field(description="The decision within the trace.")
    timestamp_ms: TimestampMs | None = optional(
        "Event time in ms since 1970 UTC; default: the record's timestamp."
    )


class CandidateRow(BaseModel):
    """One candidate in the row form of a ranking."""

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, frozen=True, defer_build=True
    )

    id: Id
    score: Number | None = None
    features: FeatureRow | None = None
    published_ms: TimestampMs | None = None


class GraphRow(BaseModel):
    """A candidate that is a graph; nodes and edges are only counted."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, defer_build=True)

    type: Name | None = optional("Its success rate is kept under this type.")
    text: LongText | None = optional("Its function, in words.")
    nodes: Annotated[list[Any], Field(max_length=MAX_NODES)] | None = None
    edges: Annotated[list[Any], Field(max_length=MAX_EDGES)] | None = None

    def as_graph(self) -> Graph:
        return Graph(self.type or "", self.text or "", len(self.nodes or ()), len(self.edges or ()))


def _parallel(member: str, values: Sequence[Any] | None, n_candidates: int) -> None:
    if values is not None and len(values) != n_candidates:
        n = f"{member} has {len(values)} entries for {n_candidates} candidates"
        raise _error("parallel", f"{n}; they must be parallel")


_PARALLEL = (
    *("scores", "ranks", "features", "propensities", "exposed", "published_ms"),
    *("descriptions", "graphs"),
)


class Ranking(Message):
    """The candidates of one query, in any order, with scores or explicit ranks."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"anyOf": [{"required": [member]} for member in members]}
                for members in (("candidate_ids", "candidates"), ("scores", "ranks", "candidates"))
            ]
        }
    )

    model: Name | None = optional("The model; missing counts as empty.")
    variant: Name | None = optional("Variant of the model, e.g. an experiment arm.")
    query: str | None = optional("The text of the query.")
    candidate_ids: PerCandidate[Id] | None = optional(
        "The candidates; may be empty, and may repeat an id."
    )
    candidates: PerCandidate[CandidateRow] | None = optional(
        "The row form, instead of candidate_ids."
    )
    scores: PerCandidate[Number] | None = optional(
        "Scores of the served ranker, parallel to the candidates."
    )
    ranks: PerCandidate[Rank] | None = optional(
        "The order that the user saw, instead of scores; with gaps and ties."
    )
    scorers: dict[Name, list[Number] | None] | None = optional(
        "Scores of other rankers by name: at most 8."
    )
    feature_names: Annotated[list[Name], Field(max_length=MAX_FEATURES)] | None = None
    features: PerCandidate[FeatureRow] | None = optional(
        "One row per candidate, all of one length."
    )
    segments: dict[Name, Name | None] | None = optional("Level by segment of the query.")
    propensities: PerCandidate[Propensity] | None = optional(
        "Probability of examination, parallel to the candidates."
    )
    exposed: PerCandidate[bool] | None = optional(
        "Whether the user has seen each candidate; of a repeated id its best mention counts."
    )
    exposed_top: Count | None = optional(
        "Number of first candidates that the user has seen, instead of exposed."
    )
    subtopics: dict[Id, list[Name] | None] | None = optional(
        "Subtopics by candidate id; those of a judgment have priority."
    )
    published_ms: PerCandidate[TimestampMs | None] | None = optional(
        "Publication time of each candidate, parallel."
    )
    candidate_kind: CandidateKind | None = optional(
        "Kind of the candidates, from which features are computed."
    )
    descriptions: PerCandidate[LongText | None] | None = optional(
        "Descriptions of tools, parallel."
    )
    graphs: PerCandidate[GraphRow] | None = optional("Candidates that are graphs, parallel.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.candidate_ids is None) == (self.candidates is None):
            raise _error(
                "candidates", "a ranking has either candidate_ids or candidates, exactly one"
            )
        self._check_rows()
        if self.all_scores() is None and self.ranks is None:
            raise _error("scores", "a ranking needs scores or ranks")
        n_candidates = len(self.all_ids())
        for member in _PARALLEL:
            _parallel(member, getattr(self, member), n_candidates)
        if self.exposed is not None and self.exposed_top is not None:
            raise _error("exposed", "a ranking has exposed or exposed_top, not both")
        self._check_kind()
        self._check_scorers(n_candidates)
        self._check_features()
        return self

    def _check_rows(self) -> None:
        """Checks that the row form has a member in every row or in none, and in one place only."""
        for member, listed in (("score", "scores"), ("features", "features")):
            given = [getattr(row, member) is not None for row in self.candidates or ()]
            if any(given) and not all(given):
                raise _error("rows", f"{member} is in some candidates only")
            if any(given) and getattr(self, listed) is not None:
                raise _error("rows", f"{listed} is given twice: as a list and in candidates")

    def _check_kind(self) -> None:
        """Checks that only tools have descriptions, and only graphs have graphs."""
        if self.descriptions is not None and self.graphs is not None:
            raise _error("kind", "a ranking has descriptions (of tools) or graphs, not both")
        for member, kind in (("descriptions", "tool"), ("graphs", "graph")):
            given = self.candidate_kind
            if getattr(self, member) is not None and given not in (None, kind):
                of_kind = f"{member} are for candidates of kind {kind}"
                raise _error("kind", f"{of_kind}, and candidate_kind is {given}")

    def _check_scorers(self, n_candidates: int) -> None:
        scorers = self.named_scorers()
        if len(scorers) > MAX_SCORERS:
            raise _error("limit", f"at most {MAX_SCORERS} named scorers, not {len(scorers)}")
        for name, scores in scorers.items():
            if not is_scorer_name(name):
                raise _error(
                    "scorer",
                    f"a scorer cannot be named {name!r}; served, champion, challenger, weights "
                    "and the empty name are reserved",
                )
            _parallel(f"scorers.{name}", scores, n_candidates)

    def _check_features(self) -> None:
        rows = self.all_features()
        if not rows:
            return
        n_features = len(rows[0]) if self.feature_names is None else len(self.feature_names)
        for index, row in enumerate(rows):
            if len(row) != n_features:
                found = f"the features of candidate {index} are {len(row)}"
                raise _error("ragged", f"{found}, not {n_features}")

    def all_ids(self) -> list[str]:
        """Candidate ids in message order, of either form."""
        if self.candidates is not None:
            return [row.id for row in self.candidates]
        return self.candidate_ids or []

    def all_scores(self) -> list[float] | None:
        """Scores of the served ranker in message order; None without any."""
        if self.scores is not None or self.candidates is None:
            return self.scores
        scores = [row.score for row in self.candidates if row.score is not None]
        return scores if len(scores) == len(self.candidates) else None

    def all_features(self) -> list[list[float | None]] | None:
        """Feature rows in message order, None for a missing feature; None without any."""
        if self.features is not None or self.candidates is None:
            return self.features
        return [row.features for row in self.candidates if row.features is not None] or None

    def all_published_ms(self) -> list[int | None] | None:
        """Publication times of the candidates in message order; None without any."""
        times = self.published_ms
        if times is None:
            times = [row.published_ms for row in self.candidates or ()]
        return times if any(ms is not None for ms in times) else None

    def described(self) -> Described | None:
        """The candidates to compute features of; None if the message has features or no kind."""
        is_described = self.candidate_kind == "tool" or any(
            member is not None for member in (self.descriptions, self.graphs)
        )
        if self.all_features() is not None or not is_described:
            return None
        return Described(
            kind="tool" if self.graphs is None else "graph",
            query=self.query or "",
            candidate_ids=tuple(self.all_ids()),
            descriptions=tuple(text or "" for text in self.descriptions or ()),
            graphs=tuple(row.as_graph() for row in self.graphs or ()),
        )

    def exposure(self) -> bytes | int | None:
        """The exposed candidates, as in `RankingColumns.exposed`; None without any statement."""
        return self.exposed_top if self.exposed is None else bytes(self.exposed)

    def levels_of(self, segments: Sequence[str]) -> Levels:
        """The levels of these segments."""
        given = self.segments or {}
        return tuple((name, level) for name in segments if (level := given.get(name)))

    def named_scorers(self) -> dict[str, list[float]]:
        """The scorers that are not null."""
        given = self.scorers or {}
        return {name: scores for name, scores in given.items() if scores is not None}


class Judgment(Message):
    """Grades of candidates of one query, from one source."""

    source: Name | None = optional("Source of the judgment: human, llm, click ...")
    grades: Annotated[dict[Id, Grade | None], Field(min_length=1, max_length=MAX_CANDIDATES)] = (
        Field(description="Grade by candidate id; null or negative withdraws it.")
    )
    judgment_id: Name | None = optional("Identifies repeated deliveries.")
    subtopics: dict[Id, list[Name] | None] | None = optional(
        "Subtopics by candidate id, merged like grades."
    )
