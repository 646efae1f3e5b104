"""Every setting: type, default, accepted values and meaning."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from evaluator.config.checks import check
from evaluator.config.kinds import (
    DURATION,
    FOLDER_URL,
    GROUP,
    HOST,
    LEVELS,
    LINE,
    MEASURES,
    MEMBER,
    NAMED_COUNTS,
    NAMED_SHARES,
    NAMES,
    NUMBERS_OR_FILE,
    PAIRS,
    PATH,
    SEGMENTS,
    SOME_MEASURES,
    SWITCH,
    TOPIC,
    TOPIC_PREFIX,
    TRANSFORMS,
    URL,
    VARIANTS,
    Spec,
    choice,
    integer,
    named_choices,
    none_or,
    number,
    optional,
    setting,
)
from evaluator.core.join.merging import MERGES
from evaluator.core.learning.names import GATES, LABEL_MODES, LOSSES, OPTIMIZERS, SCALES, SCHEDULES
from evaluator.core.measures.exposure import MAX_IPS_CLIP

MASK = "***"

_join, _measure = partial(setting, "Join"), partial(setting, "Measures")
_input, _output = partial(setting, "Input"), partial(setting, "Output")
_learning, _state = partial(setting, "Learning"), partial(setting, "State")
_alarm = partial(setting, "Alarms")
_http, _kafka, _log = (partial(setting, group) for group in ("HTTP", "Kafka security", "Log"))
_registry = partial(setting, "Schema registry")

SEMANTIC_GROUPS = ("Join", "Measures")
"""The settings of these groups change the meaning of results."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one process, group by group; names end in their unit.

    Raises:
        ConfigError: if settings contradict each other.
    """

    retention_ms: int = _join(
        86_400_000,
        integer(1),
        "how long a query takes judgments, in event time",
        example="86400000 (one day)",
        refusal="so no judgment can ever join. Set it to the longest delay you accept",
    )
    maturity_ms: int = _join(
        3_600_000,
        DURATION,
        "age at which a query is settled; at most `retention_ms`",
        example="3600000 (one hour)",
    )
    early_ms: int = _join(60_000, DURATION, "how much older than its ranking a judgment may be")
    remember_ms: int = _join(
        3_600_000,
        DURATION,
        "how long after `retention_ms` a judgment is counted as `late`, not as an orphan",
    )
    out_of_orderness_ms: int = _join(
        300_000,
        DURATION,
        "how far a timestamp may lie behind the largest one of its log before its event time "
        "is bounded; the watermark follows the clocks at this distance",
    )
    max_future_skew_ms: int = _join(
        300_000,
        DURATION,
        "how far `timestamp_ms` may lie after the record's own timestamp before the message is "
        "malformed (`future`)",
    )
    window_ms: int = _join(
        60_000,
        integer(1),
        "length of the event-time windows",
        example="60000 (one minute)",
        refusal="so a window would be empty. Set it to the length of a window",
    )

    grades_merge: str = _join(
        "last",
        choice(*MERGES),
        "of several grades of a candidate by one source: the latest, or the largest since the "
        "last withdrawal; across sources the latest counts ([implicit feedback](implicit.md))",
    )
    grades_merge_by_source: tuple[tuple[str, str], ...] = _join(
        (),
        named_choices(*MERGES),
        "`grades_merge` of single sources",
        example="click=max,human=last",
    )

    idle_ms: int = _input(
        10_000,
        DURATION,
        "wall-clock time without new records after which a heartbeat is appended to an input "
        "partition",
    )
    heartbeats: bool = _input(
        True, SWITCH, "append heartbeats to idle input partitions (needs Write on them)"
    )
    heartbeat_max_gap_ms: int = _input(
        86_400_000,
        DURATION,
        "no heartbeat is appended to a log whose clock is further behind the broker's: it is "
        "being loaded with old records",
    )
    heartbeat_outage_wait_ms: int = _input(
        600_000,
        DURATION,
        "upper limit of the pause of heartbeats after an outage of the broker; the pause is as "
        "long as the outage, so that producers can send what they have buffered",
    )
    max_lead_ms: int = _input(
        60_000,
        DURATION,
        "how far the clock of one log may lead the other while that one has unread records",
    )
    max_poll_records: int = _input(5_000, integer(1, 100_000), "most records read in one batch")
    topic_prefix: str = _input(
        "", TOPIC_PREFIX, "prefix of the names of all topics", example="prod."
    )
    mapping: str | None = _input(
        None,
        optional(PATH),
        "file that maps the records of foreign topics ([mapping](mapping.md)); `heartbeats` is "
        "then `off` unless it is set",
        example="mapping.toml",
    )
    rankings_topic: str = _input(
        "rankings",
        TOPIC,
        "topic of the rankings, whole; `topic_prefix` precedes the default name only",
    )
    judgments_topic: str = _input(
        "judgments",
        TOPIC,
        "topic of the judgments, whole; `topic_prefix` precedes the default name only",
    )
    group_id: str = _input("evaluator", GROUP, "consumer group of the workers")
    session_timeout_ms: int = _input(
        20_000,
        integer(1_000, 86_400_000),
        "wall-clock time without a heartbeat of a group member after which its tasks are "
        "reassigned; within the limits of the broker",
    )
    group_instance_id: str | None = _input(
        None,
        optional(MEMBER),
        "name of this process in its group, for static membership: its tasks wait for a restart "
        "within `session_timeout_ms` ([restarts](operations.md#restarts-without-moves))",
        example="evaluator-0",
    )

    measures: tuple[str, ...] = _measure(
        ("top1", "top3", "mrr", "ndcg@10", "map@10"), MEASURES, "the measures of every query"
    )
    empty: str = _measure(
        "zero",
        choice("zero", "skip"),
        "a judged query without a relevant candidate: `zero` counts it as 0, `skip` excludes it",
    )
    ties: str = _measure(
        "id",
        choice("id", "average"),
        "equal scores: `id` orders them by `candidate_id` bytes, descending; `average` takes the "
        "mean over all orders",
    )
    judged_only: bool = _measure(
        False, SWITCH, "`on` removes unjudged candidates from a list before it is measured"
    )
    freshness_half_life_ms: int = _measure(
        0,
        DURATION,
        "age of a candidate, by its `published_ms`, at which its gain in `ndcg` is halved; 0 for "
        "no decay",
        example="604800000 (one week)",
    )
    map_graded_max_grade: int = _measure(
        2,
        integer(1, 31),
        "grade that counts fully in `map_graded`, and for `phi_hist` "
        "([success rate](features.md#success-rate))",
    )
    err_max_grade: int = _measure(
        4, integer(1, 31), "grade that counts fully in `err`; higher grades count as this one"
    )

    ips_clip: float = _measure(
        20.0,
        number(minimum=1, maximum=MAX_IPS_CLIP),
        "largest weight of a click in `ips_dcg` and `ips_clicks` "
        "([position bias](implicit.md#position-bias))",
    )
    silence: str = _measure(
        "unjudged",
        choice("unjudged", "zero"),
        "`zero` gives exposed candidates without a grade by maturity the grade 0 "
        "([silence](implicit.md#silence))",
    )
    segments: tuple[str, ...] = _measure(
        (),
        SEGMENTS,
        "members of the rankings' `segments` by whose levels values are summed "
        "([segments](segments.md)), and which `evaluations` and `settled` contain",
        example="locale,device",
    )
    segment_levels: tuple[tuple[str, str], ...] = _measure(
        (),
        LEVELS,
        "levels that always have sums of their own, in addition to the 1,000 with the smallest "
        "hashes ([segments](segments.md))",
        example="locale=de,device=mobile",
    )
    segment_measures: tuple[str, ...] = _measure(
        (),
        SOME_MEASURES,
        "measures that are summed by level; without any, all of `measures`",
        example="ndcg@10,mrr",
    )

    learning: str = _learning(
        "off",
        choice("off", "propose", "auto"),
        "`propose` publishes weights that it would promote, `auto` promotes them "
        "([the leader](leader.md)); with either, `settled` contains features and grades",
    )
    embedder: str = _learning(
        "ngrams",
        choice("ngrams", "minilm"),
        "compares texts for [features](features.md#embedders) of described candidates; "
        "`minilm` needs the extra `embeddings`",
    )
    loss: str = _learning(
        "softmax", choice(*LOSSES), "the loss that is minimised ([learning](learning.md))"
    )
    label_mode: str = _learning(
        "distribution",
        choice(*LABEL_MODES),
        "how `softmax` turns grades into labels; propensities need `sum`",
    )
    optimizer: str = _learning("adagrad", choice(*OPTIMIZERS), "how a gradient becomes a step")
    schedule: str = _learning(
        "constant",
        choice(*SCHEDULES),
        "`inv_sqrt` divides the rate by sqrt(1 + updates applied before)",
    )
    learning_rate: float = _learning(0.05, number(above=0), "factor of each step")
    l2: float = _learning(
        0.0, number(minimum=0), "factor of |w|^2, added to the loss once per update"
    )
    batch_queries: int = _learning(
        1, integer(1, 100_000), "consecutive groups per update, skipped ones included"
    )
    scale: str = _learning(
        "within_query",
        choice(*SCALES),
        "`within_query` divides features by their standard deviation within groups, which the "
        "first 50 groups give",
    )
    clip_norm: float | None = _learning(
        None,
        none_or(number(above=0)),
        "largest norm of a gradient; a longer gradient is scaled down to it",
        example="1.0",
    )
    initial_weights: tuple[float, ...] | str = _learning(
        (),
        NUMBERS_OR_FILE,
        "initial weights, one per feature, with commas, or a weights record `*.json`; none: 0 each",
        example="0.25,0.25,0.25,0.25",
    )
    feature_transforms: tuple[tuple[str, str], ...] = _learning(
        (),
        TRANSFORMS,
        "transforms of features, before weights are learned and applied "
        "([transforms](learning.md#transforms))",
        example="price=log1p,age=clip:0:30",
    )
    gate_measure: str = _learning(
        "ndcg@10", LINE, "the measure that a challenger must improve; one of measures"
    )
    gate_guardrails: tuple[tuple[str, float], ...] = _learning(
        (),
        NAMED_SHARES,
        "other measures, and how much worse their means may be ([the gate](gate.md#rules))",
        example="mrr=0.01,top1=0.02",
    )
    gate: str = _learning(
        "standard",
        choice(*GATES),
        "the six rules below that are not set ([the gate](gate.md#rules))",
    )
    gate_alpha: float | None = _learning(
        None,
        none_or(number(above=0)),
        "largest probability that a challenger that is no better is ever promoted; below 1",
        example="0.01",
    )
    gate_block_ms: int | None = _learning(
        None, none_or(integer(1)), "event time of the block of one bet", example="600000"
    )
    gate_min_traces: int | None = _learning(
        None, none_or(integer(0)), "traces of evidence before a promotion", example="1000"
    )
    gate_min_age_ms: int | None = _learning(
        None,
        none_or(DURATION),
        "event time of an experiment before a promotion",
        example="7200000 (two hours)",
    )
    gate_max_age_ms: int | None = _learning(
        None,
        none_or(DURATION),
        "event time after which an experiment that is undecided ends",
        example="72000000 (twenty hours)",
    )
    gate_cool_down_ms: int | None = _learning(
        None,
        none_or(DURATION),
        "event time between the end of one experiment and the next",
        example="21600000 (six hours)",
    )
    source_weights: tuple[tuple[str, float], ...] = _learning(
        (),
        NAMED_SHARES,
        "weight of a judgment by its `source`; unlisted sources have weight 0. None: all have "
        "the same weight, which `auto` refuses",
        example="human=1,click=0.2",
    )
    implicit_sources: tuple[str, ...] = _learning(
        (),
        NAMES,
        "sources whose judgments are clicks: learning = auto needs `propensities` in the rankings "
        "that they judge ([position bias](implicit.md#position-bias))",
        example="click,purchase",
    )
    source_max_judgments: tuple[tuple[str, int], ...] = _learning(
        (),
        NAMED_COUNTS,
        "judgments of a source that count in full in one interval; the weight of this many is "
        "shared by more. None: no limit",
        example="click=1000",
    )
    source_max_share: tuple[tuple[str, float], ...] = _learning(
        (),
        NAMED_SHARES,
        "largest share of a source in the weight of one interval. None: 1",
        example="click=0.2",
    )
    learning_interval_ms: int = _learning(
        3_600_000,
        DURATION,
        "event time between two updates of evidence, weights and published state; 0 means 1",
    )

    alarms: bool = _alarm(
        True, SWITCH, "the leader watches series of settled values ([alarms](alarms.md))"
    )
    alarm_measures: tuple[str, ...] = _alarm(
        ("ndcg@10",),
        SOME_MEASURES,
        "the measures that are watched; one that is not in measures is an error, unless it is the "
        "default",
    )
    alarm_rankers: tuple[str, ...] = _alarm(
        ("served",), NAMES, "the rankers whose values are watched", example="served,bm25"
    )
    alarm_levels: tuple[tuple[str, str], ...] = _alarm(
        (),
        LEVELS,
        "levels of segments that are watched, and that explain alarms",
        example="locale=de,locale=fr",
    )
    alarm_pairs: tuple[str, ...] = _alarm(
        (),
        PAIRS,
        "rankers whose difference on the same queries is watched",
        example="served-bm25",
    )
    alarm_variants: tuple[str, ...] = _alarm(
        (),
        VARIANTS,
        "variants of which the first is compared with the same hours of the second",
        example="canary-prod",
    )
    alarm_objectives: tuple[tuple[str, float], ...] = _alarm(
        (),
        NAMED_SHARES,
        "lowest accepted means of the served order, watched from the first day",
        example="ndcg@10=0.3",
    )
    alarm_max_series: int = _alarm(
        20, integer(1, 2_000), "series that share the budget; further ones are not watched"
    )
    alarm_tolerance: float = _alarm(
        0.01, number(above=0, maximum=1), "smallest drop that is an alarm, in units of the measure"
    )
    alarm_budget_days: int = _alarm(
        30,
        integer(7, 36_500),
        "at most one false alarm in this time, over all series together",
    )

    histogram_measures: tuple[str, ...] = _output(
        (),
        SOME_MEASURES,
        "the measures whose settled values are also counted by bucket, for `/metrics`: 14 series "
        "for each ranker",
        example="ndcg@10",
    )
    output_prefix: str | None = _output(
        None,
        optional(TOPIC_PREFIX),
        "prefix of the names of all topics but the inputs, for a second evaluator on the same "
        "inputs ([blue and green](blue-green.md)); by default `topic_prefix`",
        example="green.",
    )
    emit_query: bool = _output(True, SWITCH, "`off` omits the text of the query from all outputs")

    http_host: str = _http("127.0.0.1", HOST, "address to listen on; `0.0.0.0` for all")
    http_port: int = _http(9464, integer(0, 65_535), "port to listen on; 0 for any free one")
    http_max_connections: int = _http(
        64,
        integer(1, 10_000),
        "most connections at a time; beyond it a new one replaces one that sends no request",
    )
    http_token_file: str | None = _http(
        None,
        optional(PATH),
        "file with a token that all paths but `/livez` and `/readyz` then require; read at every "
        "request",
        example="/run/secrets/http-token",
        secret=True,
    )
    http_tls_certfile: str | None = _http(
        None,
        optional(PATH),
        "PEM file of the server's certificate chain; enables HTTPS",
        example="/run/secrets/tls.crt",
    )
    http_tls_keyfile: str | None = _http(
        None,
        optional(PATH),
        "PEM file of the certificate's key, without a password",
        example="/run/secrets/tls.key",
    )
    runbook_url: str | None = _http(
        None,
        optional(URL),
        "address of docs/runbooks.md in your copy of the repository; the page, alerts and "
        "dashboards link to its sections",
        example="https://docs.example.com/runbooks.md",
    )
    dashboard_url: str | None = _http(
        None,
        optional(URL),
        "address of your Grafana; alerts link to its dashboards",
        example="https://grafana.example.com",
    )

    state_dir: str = _state("./state", PATH, "folder of the durable state of this worker only")
    memory_tier_bytes: int = _state(
        512 << 20,
        integer(1 << 20),
        "approximate memory of the open queries of a task; further queries are on the disk",
        example="536870912 (512 MiB)",
    )
    max_store_bytes: int = _state(
        0, integer(0), "disk space of a task's state at which the worker stops; 0 for no limit"
    )
    checkpoint_interval_ms: int = _state(
        10_000,
        DURATION,
        "least time between two checkpoints of a task; after one of n x 512 KiB n times as long, "
        "at most 5 minutes",
    )
    snapshot_url: str | None = _state(
        None,
        optional(FOLDER_URL),
        "folder for [snapshots](snapshots.md) of the stores of tasks, for all workers of a group",
        example="s3://bucket/evaluator",
    )
    snapshot_interval_ms: int = _state(
        300_000, integer(1_000), "wall-clock time between two snapshots of a task"
    )

    security_protocol: str = _kafka(
        "PLAINTEXT",
        choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "protocol of connections to brokers",
    )
    sasl_mechanism: str = _kafka(
        "PLAIN",
        choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "mechanism of the login with `SASL_PLAINTEXT` and `SASL_SSL`",
    )
    sasl_username: str | None = _kafka(
        None, optional(LINE), "user name of the login", example="evaluator", secret=True
    )
    sasl_password_file: str | None = _kafka(
        None,
        optional(PATH),
        "file with the password and nothing else, read at every use",
        example="/run/secrets/kafka-password",
        secret=True,
    )
    ssl_cafile: str | None = _kafka(
        None, optional(PATH), "PEM file of the trusted authorities", example="/etc/kafka/ca.pem"
    )
    ssl_certfile: str | None = _kafka(
        None,
        optional(PATH),
        "PEM file of the client certificate",
        example="/etc/kafka/client.pem",
    )
    ssl_keyfile: str | None = _kafka(
        None,
        optional(PATH),
        "PEM file of the client certificate's key",
        example="/etc/kafka/client.key",
    )

    registry_username: str | None = _registry(
        None,
        optional(LINE),
        "user name for the `registry` of a mapping ([formats](formats.md))",
        example="evaluator",
        secret=True,
    )
    registry_password_file: str | None = _registry(
        None,
        optional(PATH),
        "file with the password and nothing else, read at every request",
        example="/run/secrets/registry-password",
        secret=True,
    )
    registry_cafile: str | None = _registry(
        None,
        optional(PATH),
        "PEM file of the trusted authorities; by default those of the system",
        example="/etc/ssl/registry-ca.pem",
    )

    log_format: str = _log(
        "auto", choice("auto", "json", "console"), "`auto` is `console` on a terminal, else `json`"
    )
    log_level: str = _log(
        "info", choice("debug", "info", "warning", "error"), "least severe logged level"
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def leads(self) -> bool:
        """Whether a leader has work."""
        return self.alarms or self.learns

    @property
    def learns(self) -> bool:
        """Whether learning is on, so that `settled` contains features and grades."""
        return self.learning != "off"

    @property
    def written_prefix(self) -> str:
        """The prefix of all topics but the inputs."""
        return self.topic_prefix if self.output_prefix is None else self.output_prefix

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v!r}' for k, v in self.as_shown().items())})"

    def as_shown(self) -> dict[str, Any]:
        """Every setting by name, with secret values masked, for logs and pages."""
        return {
            name: MASK if spec.secret and getattr(self, name) is not None else getattr(self, name)
            for name, spec in SPECS.items()
        }

    def semantic_settings(self) -> dict[str, Any]:
        """The settings that change the meaning of results, in a fixed order, as JSON values."""
        names = (name for name, spec in SPECS.items() if spec.group in SEMANTIC_GROUPS)
        return {name: _listed(getattr(self, name)) for name in names}


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value


SPECS: Mapping[str, Spec] = {each.name: each.default_factory for each in fields(Settings)}
"""Accepted values and meaning of each setting, group by group."""
