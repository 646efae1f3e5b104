"""Every setting, told once: type, default, what is accepted, and what it means."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from evaluator.config import kinds
from evaluator.config.kinds import ConfigError, choice, integer, optional
from evaluator.config.learning import LEARNING, LearningSettings
from evaluator.config.specs import Spec
from evaluator.config.specs import setting as _setting

MASK = "***"

JOIN, INPUT, MEASURES, OUTPUT = "Join", "Input", "Measures", "Output"
KAFKA, HTTP, STATE, LOG = "Kafka security", "HTTP", "State", "Log"
_GROUPS = (JOIN, INPUT, MEASURES, LEARNING, OUTPUT, HTTP, STATE, KAFKA, LOG)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Settings(LearningSettings):
    """The settings of one process; names end in their unit.

    Raises:
        ConfigError: if settings contradict each other.
    """

    retention_ms: int = _setting(
        86_400_000,
        JOIN,
        integer(1),
        "how long a query takes judgments, in event time",
        "86400000 (one day)",
        refusal="so no judgment can ever join. Set it to the longest delay you accept",
    )
    maturity_ms: int = _setting(
        3_600_000,
        JOIN,
        kinds.DURATION,
        "age at which a query is evaluated for the last time; at most `retention_ms`",
        "3600000 (one hour)",
    )
    early_ms: int = _setting(
        60_000, JOIN, kinds.DURATION, "how much older than its ranking a judgment may be"
    )
    remember_ms: int = _setting(
        3_600_000,
        JOIN,
        kinds.DURATION,
        "how long after `retention_ms` a judgment still counts as `late`, not as an orphan",
    )
    out_of_orderness_ms: int = _setting(
        300_000,
        JOIN,
        kinds.DURATION,
        "how far a timestamp may lie behind the largest one of its log before its event time "
        "is bounded; the watermark follows the clocks at this distance",
    )
    max_future_skew_ms: int = _setting(
        300_000,
        JOIN,
        kinds.DURATION,
        "how far `timestamp_ms` may lie after the record's own timestamp before the message is "
        "malformed (`future`)",
    )
    window_ms: int = _setting(
        60_000,
        JOIN,
        integer(1),
        "length of the event-time windows",
        "60000 (one minute)",
        refusal="so a window would hold nothing. Set it to the length of a window",
    )
    idle_ms: int = _setting(
        10_000,
        INPUT,
        kinds.DURATION,
        "how long an input partition stands at its end before a heartbeat is appended, "
        "in wall-clock time",
    )
    heartbeats: bool = _setting(
        True,
        INPUT,
        kinds.SWITCH,
        "append heartbeats to quiet input partitions (needs Write on them)",
    )
    heartbeat_max_gap_ms: int = _setting(
        86_400_000,
        INPUT,
        kinds.DURATION,
        "a log whose clock is further behind the broker's gets no heartbeat: history is loading",
    )
    heartbeat_outage_wait_ms: int = _setting(
        600_000,
        INPUT,
        kinds.DURATION,
        "after an outage of the broker no heartbeat is appended for as long again, but not for "
        "longer than this: producers send what they have buffered",
    )
    max_lead_ms: int = _setting(
        60_000,
        INPUT,
        kinds.DURATION,
        "how far the clock of one log may lead the other while that one has unread records",
    )
    max_poll_records: int = _setting(
        5_000, INPUT, integer(1, 100_000), "most records read in one batch"
    )
    topic_prefix: str = _setting(
        "", INPUT, kinds.TOPIC_PREFIX, "put before the name of every topic", "prod."
    )
    group_id: str = _setting("evaluator", INPUT, kinds.LINE, "consumer group of the workers")
    session_timeout_ms: int = _setting(
        20_000,
        INPUT,
        integer(1_000, 86_400_000),
        "how long the group waits for a worker that is silent before others get its tasks, in "
        "wall-clock time; within what the broker allows",
    )
    measures: tuple[str, ...] = _setting(
        ("top1", "top3", "mrr", "ndcg@10", "map@10"),
        MEASURES,
        kinds.MEASURES,
        "the measures taken of every query",
    )
    histogram_measures: tuple[str, ...] = _setting(
        (),
        MEASURES,
        kinds.SOME_MEASURES,
        "the measures whose settled values are also counted by bucket, for `/metrics`: 14 series "
        "for each ranker",
        "ndcg@10",
    )
    empty: str = _setting(
        "zero",
        MEASURES,
        choice("zero", "skip"),
        "a judged query with nothing relevant: `zero` counts it as 0, `skip` leaves it out",
    )
    ties: str = _setting(
        "id",
        MEASURES,
        choice("id", "average"),
        "equal scores: `id` orders them by `candidate_id` bytes, descending; `average` takes the "
        "mean over all orders",
    )
    judged_only: bool = _setting(
        False,
        MEASURES,
        kinds.SWITCH,
        "`on` takes candidates that nobody judged out of a list before it is measured",
    )
    freshness_half_life_ms: int = _setting(
        0,
        MEASURES,
        kinds.DURATION,
        "age of a candidate, by its `published_ms`, at which its gain in `ndcg` is halved; 0 for "
        "no decay",
        "604800000 (one week)",
    )
    map_graded_max_grade: int = _setting(
        2,
        MEASURES,
        integer(1, 31),
        "grade that counts fully in `map_graded`, and "
        "for `phi_hist` ([success rate](features.md#success-rate))",
    )
    err_max_grade: int = _setting(
        4, MEASURES, integer(1, 31), "grade that counts fully in `err`; higher ones count as it"
    )
    emit_query: bool = _setting(
        True, OUTPUT, kinds.SWITCH, "`off` leaves the text of the query out of every output"
    )
    http_host: str = _setting(
        "127.0.0.1", HTTP, kinds.LINE, "address to listen on; `0.0.0.0` for all"
    )
    http_port: int = _setting(
        9464, HTTP, integer(0, 65_535), "port to listen on; 0 for any free one"
    )
    http_max_connections: int = _setting(
        64,
        HTTP,
        integer(1, 10_000),
        "most connections at a time; beyond it a new one replaces one that sends no request",
    )
    http_token_file: str | None = _setting(
        None,
        HTTP,
        optional(kinds.PATH),
        "file with a token that everything but `/livez` and `/readyz` then asks for, read at every "
        "request",
        "/run/secrets/http-token",
        secret=True,
    )
    http_tls_certfile: str | None = _setting(
        None,
        HTTP,
        optional(kinds.PATH),
        "PEM file of the server's certificate chain; with it, HTTP is HTTPS",
        "/run/secrets/tls.crt",
    )
    http_tls_keyfile: str | None = _setting(
        None,
        HTTP,
        optional(kinds.PATH),
        "PEM file of the certificate's key, without a password",
        "/run/secrets/tls.key",
    )
    state_dir: str = _setting(
        "./state", STATE, kinds.PATH, "folder of the durable state, of this worker alone"
    )
    memory_tier_bytes: int = _setting(
        512 << 20,
        STATE,
        integer(1 << 20),
        "about how much memory the open queries of a task may take; the others are on the disk",
        "536870912 (512 MiB)",
    )
    max_store_bytes: int = _setting(
        0,
        STATE,
        integer(0),
        "how much room on the disk the state of a task may take before the worker stops; 0 for "
        "as much as there is",
    )
    checkpoint_interval_ms: int = _setting(
        10_000,
        STATE,
        kinds.DURATION,
        "least time between two checkpoints of a task; one of n x 512 KiB waits n times as long, "
        "at most 5 minutes",
    )
    security_protocol: str = _setting(
        "PLAINTEXT",
        KAFKA,
        choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "how to speak to the brokers",
    )
    sasl_mechanism: str = _setting(
        "PLAIN",
        KAFKA,
        choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "how to log in, with `SASL_PLAINTEXT` and `SASL_SSL`",
    )
    sasl_username: str | None = _setting(
        None, KAFKA, optional(kinds.LINE), "name to log in with", "evaluator", secret=True
    )
    sasl_password_file: str | None = _setting(
        None,
        KAFKA,
        optional(kinds.PATH),
        "file with the password and nothing else, read at every use",
        "/run/secrets/kafka-password",
        secret=True,
    )
    ssl_cafile: str | None = _setting(
        None,
        KAFKA,
        optional(kinds.PATH),
        "PEM file of the authorities to trust",
        "/etc/kafka/ca.pem",
    )
    ssl_certfile: str | None = _setting(
        None,
        KAFKA,
        optional(kinds.PATH),
        "PEM file of the client certificate",
        "/etc/kafka/client.pem",
    )
    ssl_keyfile: str | None = _setting(
        None,
        KAFKA,
        optional(kinds.PATH),
        "PEM file of the client certificate's key",
        "/etc/kafka/client.key",
    )
    log_format: str = _setting(
        "auto",
        LOG,
        choice("auto", "json", "console"),
        "`auto` is `console` on a terminal, else `json`",
    )
    log_level: str = _setting(
        "info",
        LOG,
        choice("debug", "info", "warning", "error"),
        "least severe events that are written",
    )

    def __post_init__(self) -> None:
        if self.maturity_ms > self.retention_ms:
            raise ConfigError(
                f"maturity_ms is {self.maturity_ms} and retention_ms is {self.retention_ms}, so "
                "queries would be forgotten before they settle. Set maturity_ms to at most "
                f"retention_ms, e.g. {min(self.retention_ms, 3_600_000)}."
            )
        self.check_learning(self.measures)
        for name in self.histogram_measures:
            if name not in self.measures:
                raise ConfigError(
                    f"histogram_measures names {name!r}, which is not in measures. Choose from "
                    f"{', '.join(map(repr, self.measures))}, or add it there."
                )
        if self.security_protocol.startswith("SASL_"):
            for name in ("sasl_username", "sasl_password_file"):
                if getattr(self, name) is None:
                    raise ConfigError(
                        f"security_protocol is {self.security_protocol}, but {name} is not set. "
                        f"Set it, e.g. {SPECS[name].example}."
                    )
        for pair in (("ssl_certfile", "ssl_keyfile"), ("http_tls_certfile", "http_tls_keyfile")):
            if len({getattr(self, name) is None for name in pair}) == 2:
                raise ConfigError(f"{pair[0]} and {pair[1]} belong together. Set both or neither.")

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v!r}' for k, v in self.as_shown().items())})"

    def as_shown(self) -> dict[str, Any]:
        """Every setting by name, fit for logs and pages: what may be secret is masked."""
        return {
            name: MASK if spec.secret and getattr(self, name) is not None else getattr(self, name)
            for name, spec in SPECS.items()
        }

    def semantic_settings(self) -> dict[str, bool | int | str | list[str]]:
        """The settings that change what the results mean, in a fixed order, fit for JSON."""
        return {
            "retention_ms": self.retention_ms,
            "maturity_ms": self.maturity_ms,
            "early_ms": self.early_ms,
            "remember_ms": self.remember_ms,
            "out_of_orderness_ms": self.out_of_orderness_ms,
            "max_future_skew_ms": self.max_future_skew_ms,
            "window_ms": self.window_ms,
            "measures": list(self.measures),
            "empty": self.empty,
            "ties": self.ties,
            "judged_only": self.judged_only,
            "freshness_half_life_ms": self.freshness_half_life_ms,
            "map_graded_max_grade": self.map_graded_max_grade,
            "err_max_grade": self.err_max_grade,
        }


SPECS: Mapping[str, Spec] = {
    f.name: f.metadata["spec"]
    for f in sorted(fields(Settings), key=lambda f: _GROUPS.index(f.metadata["spec"].group))
}
"""What is known of each setting, by name, group by group."""
