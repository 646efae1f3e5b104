"""Worlds of series for `promtool test rules`, and a reader of the rules of `deploy/`."""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isnan
from pathlib import Path
from urllib.parse import quote_plus

import numpy as np
import yaml

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
PROMTOOL = shutil.which("promtool")
FIRING = 'group by (alertname, job) (ALERTS{alertstate="firing"})'

GROUPS = [
    "evaluator-links",
    *("evaluator-thresholds", "evaluator-quality-hour", "evaluator-quality-day"),
    *("evaluator-pipeline", "evaluator-alerts-quality", "evaluator-alerts-pipeline"),
    "evaluator-alerts-learning",
]
"""Groups in order of their dependencies; in Prometheus they may lag by one evaluation."""

RUNBOOKS = "docs/runbooks.md"
"""The label of `evaluator:runbooks`."""

EVER = 'group by (alertname, job) (last_over_time(ALERTS{alertstate="firing"}[9d]))'

Series = dict[str, Sequence[float | None]]
"""Samples by name with labels, one per step; NaN is no sample, None a staleness marker."""


def rules_of(kind: str) -> dict[str, dict]:
    """Every rule of a kind (`alert` or `record`) by name; a repeated one has several labels."""
    found: dict[str, dict] = {}
    for path in RULES:
        for group in copy.deepcopy(_groups(path)):
            found |= {rule[kind]: rule for rule in group["rules"] if kind in rule}
    return found


@cache
def _groups(path: Path) -> list[dict]:
    """The groups of a file; reading them is slow."""
    return yaml.safe_load(path.read_text("utf-8"))["groups"]


def threshold(name: str) -> float:
    """The number of a rule of thresholds.yml."""
    return float(rules_of("record")[f"evaluator:{name}"]["expr"].split("(")[1].rstrip(")"))


def promtool(*arguments: str | Path, timeout: float = 600) -> tuple[int, str]:
    """Exit code and the whole output of promtool."""
    assert PROMTOOL is not None, "promtool is missing; `make system` installs it"
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "GOGC": "800", "GOMAXPROCS": "1"},  # a quarter less CPU time
    )
    return done.returncode, done.stdout + done.stderr


def labels_of(**labels: str) -> str:
    """`{name="value", ...}`.

    >>> labels_of(job="a", task="0")
    '{job="a", task="0"}'
    """
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def steps(*parts: tuple[float, int]) -> list[float]:
    """The increases of a counter, from pairs of (amount in each step, number of steps)."""
    return [amount for amount, n in parts for _ in range(n)]


def counter(growth: Iterable[float]) -> list[float]:
    """A counter that begins at zero, with these increases."""
    return [0.0, *np.cumsum(list(growth)).tolist()]


def restarted(values: Sequence[float], at: int) -> list[float]:
    """The counter of a process that restarted before sample *at*."""
    return [value if index < at else value - values[at - 1] for index, value in enumerate(values)]


def dashboard_of(alert: str, labels: Mapping[str, str]) -> str:
    """The link from an alert to its dashboard, without the address of Grafana."""
    text = rules_of("alert")[alert]["annotations"]["dashboard_url"].partition("{{ end }}")[2]
    return re.sub(
        r"{{ \$labels\.(\w+) \| urlquery }}",
        lambda found: quote_plus(labels.get(found[1], "")),
        text,
    )


def expected_alert(alert: str, at: str, labels: dict[str, str], **annotations: str) -> dict:
    """The expectation of `promtool test rules` for one alert, with its annotations."""
    rule = rules_of("alert")[alert]
    expected = {
        "exp_labels": rule["labels"] | labels,
        "exp_annotations": annotations
        | {
            "runbook_url": f"{RUNBOOKS}#{alert.lower()}",
            "dashboard_url": dashboard_of(alert, labels),
        },
    }
    return {"eval_time": at, "alertname": alert, "exp_alerts": [expected]}


def together(*expected: dict) -> dict:
    """The expectations of `expected_alert` for several alerts of one name at one time."""
    return expected[0] | {"exp_alerts": [alert for one in expected for alert in one["exp_alerts"]]}


def only(file: Path, *wanted: str, look_back_days: int = 7) -> Path:
    """A file with only the rules of these names, and those that they need.

    Days of minutes are slow with all rules, and a week of them in any case: these rules look back
    *look_back_days* where those of `deploy/` look back a week, or a quarter of an hour less.
    """
    rules = rules_of("record") | rules_of("alert")
    kept: set[str] = set()
    missing = [*wanted]
    while missing:
        kept.add(name := missing.pop())
        needed = re.findall(r"\bevaluator:[\w:]+", rules[name]["expr"])
        missing += [each for each in needed if each not in kept]
    groups = [group for path in RULES for group in copy.deepcopy(_groups(path))]
    for group in groups:
        group["rules"] = [
            rule for rule in group["rules"] if {rule.get("record"), rule.get("alert")} & kept
        ]
        for rule in group["rules"]:
            for a_week, days in (("1w", look_back_days), ("6d23h45m", look_back_days - 1)):
                shorter = f"{days}d{a_week[2:]}"
                rule["expr"] = re.sub(rf"\b{a_week}\b", shorter, rule["expr"])
    file.write_text(json.dumps({"groups": groups}))
    return file


def looking_back_a_day() -> list[str]:
    """The alerts that depend on samples of a day ago or longer, themselves or by their rules."""
    rules = rules_of("record") | rules_of("alert")

    def looks(name: str) -> bool:
        expr = rules[name]["expr"]
        of_rules = {*re.findall(r"\bevaluator:[\w:]+", expr)} - {name}
        return bool(re.search(r"\d[dw]", expr)) or any(map(looks, of_rules))

    return [alert for alert in rules_of("alert") if looks(alert)]


class World:
    """Series of healthy jobs at equal steps, to which faults are added afterwards.

    Args:
        step_minutes: minutes between two samples.
        n: number of steps.
        seed: seed of the noise in the values.
    """

    def __init__(self, *, step_minutes: int, n: int, seed: int = 1) -> None:
        self.step_minutes = step_minutes
        self.n = n
        self.series: Series = {}
        self._random = np.random.default_rng(seed)

    def healthy(self, job: str, *, per_step: int = 50, mean: float = 0.8) -> None:
        """Adds a healthy worker with two tasks and *per_step* queries a step."""
        n = self.n
        self.put("up", [1] * (n + 1), job=job, instance="a")
        self.put("evaluator_build_info", [1] * (n + 1), job=job, instance="a")
        self.put("evaluator_ready", [1] * (n + 1), job=job, instance="a")
        self.put("evaluator_restoring", [0] * (n + 1), job=job, instance="a")
        self.put("evaluator_tasks_owned", [2] * (n + 1), job=job, instance="a")
        needed = 180_120.0
        self.put("evaluator_input_retention_needed_seconds", [needed] * (n + 1), job=job)
        for topic in ("rankings", "judgments"):
            self.put("evaluator_input_records_lost_total", [0] * (n + 1), job=job, topic=topic)
            kept = [needed + 1] * (n + 1)
            self.put("evaluator_input_retention_seconds", kept, job=job, topic=topic)
            done = "started" if topic == "rankings" else "applied"
            self.messages(job, topic, done, [per_step] * n)
            for task in ("0", "1"):
                where = {"job": job, "instance": "a", "topic": topic, "partition": task}
                self.put("evaluator_consumer_lag", [5] * (n + 1), **where)
                self.put("evaluator_input_clock_ahead_seconds", [299] * (n + 1), **where)
                self.put("evaluator_input_position", counter([per_step // 2] * n), **where)
        self.messages(job, "judgments", "orphan", [per_step * 0.004] * n)
        self.out_of_order(job, [per_step * 0.004] * n)
        for task in ("0", "1"):
            self.watermark(job, task, [60 * self.step_minutes] * n)
            self.checkpoint(job, task, [60 * self.step_minutes] * n)
            of_task = {"job": job, "instance": "a", "task": task}
            self.put("evaluator_quarantined_stores_total", [0] * (n + 1), **of_task)
        self.dead_letters(job, "schema", [per_step * 0.002] * n)
        self.quality(job, [per_step] * n, [mean] * n)
        self.coverage(job, [per_step] * n, [0.7] * n)
        self.delays(job, [per_step] * n, [0.0] * n)

    def learning(self, job: str, *, tasks: int = 2) -> None:
        """Adds a leader beside the worker, with one model; it occasionally waits for a task."""
        n = self.n
        self.put("evaluator_leader_active", [1] * (n + 1), job=job, instance="a")
        self.put("evaluator_leader_active", [0] * (n + 1), job=job, instance="b")
        self.put("evaluator_learning_frozen", [0] * (n + 1), job=job, instance="a", model="ranker")
        self.put(
            "evaluator_learning_unusable_share",
            [0.04] * (n + 1),
            job=job,
            instance="a",
            model="ranker",
        )
        for task in range(tasks):
            last = [int(minute % 7 > 0 or task == 0) for minute in range(n + 1)]
            self.put("evaluator_leader_awaited", last, job=job, instance="a", task=str(task))
        early = [(3, 5, 9, 2, 7, 7)[minute % 6] for minute in range(n + 1)]
        self.put("evaluator_leader_buffered_queries", early, job=job, instance="a")
        of_model = {"job": job, "instance": "a", "model": "ranker"}
        self.put("evaluator_learning_updates", [40] * (n + 1), **of_model)
        self.put("evaluator_weights_version", [7] * (n + 1), **of_model, ranker="champion")
        self.put("evaluator_weights_version", [8] * (n + 1), **of_model, ranker="challenger")
        for status in ("challenger", "proposed", "promoted", "rejected", "rolled_back"):
            self.releases(job, status, [0] * n)
        self.releases(job, "challenger", [int(minute % 60 == 0) for minute in range(n)])

    def releases(self, job: str, status: str, growth: Sequence[float]) -> None:
        """Adds weights records with a status."""
        where = {"job": job, "instance": "a", "model": "ranker", "status": status}
        self.put("evaluator_weights_releases_total", counter(growth), **where)

    def put(self, name: str, values: Sequence[float], **labels: str) -> None:
        """Sets a series."""
        self.series[name + labels_of(**labels)] = values

    def drop(self, start: str, **labels: str) -> None:
        """Removes every series with this prefix of its name and these labels."""
        wanted = [f"{name}={json.dumps(value)}" for name, value in labels.items()]
        for path in list(self.series):
            if path.startswith(start) and all(text in path for text in wanted):
                del self.series[path]

    def restart_counters(self, job: str, at: int, **labels: str) -> None:
        """Restarts every counter of the job from zero before sample *at*.

        Those that have these labels, if any are given.
        """
        wanted = [f"{name}={json.dumps(value)}" for name, value in {"job": job, **labels}.items()]
        found = [path for path in self.series if all(text in path for text in wanted)]
        for path in found:
            if path.split("{")[0].endswith(("_total", "_bucket", "_count", "_sum")):
                self.series[path] = restarted(self.series[path], at)

    def messages(self, job: str, topic: str, outcome: str, growth: Sequence[float]) -> None:
        """Adds records of a topic with this outcome."""
        where = {"job": job, "instance": "a", "topic": topic, "outcome": outcome}
        self.put("evaluator_messages_total", counter(growth), **where)

    def out_of_order(self, job: str, growth: Sequence[float]) -> None:
        """Adds records out of order."""
        self.put("evaluator_out_of_order_total", counter(growth), job=job, instance="a")

    def dead_letters(self, job: str, reason: str, growth: Sequence[float]) -> None:
        """Adds dead letters with a reason."""
        where = {"job": job, "instance": "a", "reason": reason}
        self.put("evaluator_dead_letters_total", counter(growth), **where)

    def watermark(self, job: str, task: str, growth: Sequence[float]) -> None:
        """Adds a watermark 5 minutes behind, which advances by so many seconds in each step."""
        values = [value - 300 for value in counter(growth)]
        where = {"job": job, "instance": "a", "task": task}
        self.put("evaluator_watermark_timestamp_seconds", values, **where)

    def checkpoint(self, job: str, task: str, growth: Sequence[float]) -> None:
        """Adds current checkpoints, whose time advances by so many seconds in each step."""
        where = {"job": job, "instance": "a", "task": task}
        self.put("evaluator_checkpoint_timestamp_seconds", counter(growth), **where)

    def quality(
        self,
        job: str,
        queries: Sequence[int],
        means: Sequence[float],
        *,
        variant: str = "prod",
        measure: str = "ndcg@10",
    ) -> None:
        """Adds noisy settled values: a number of queries and their true mean for each step."""
        values = [
            self._random.beta(4 * mean, 4 * (1 - mean), int(n))
            for n, mean in zip(queries, means, strict=True)
        ]
        where = {"job": job, "instance": "a", "model": "ranker", "variant": variant}
        where |= {"ranker": "served", "measure": measure}
        for name, growth in (
            ("value", [part.sum() for part in values]),
            ("queries", [len(part) for part in values]),
            ("value_squares", [(part**2).sum() for part in values]),
        ):
            total = counter(growth)
            self.put(f"evaluator_quality_{name}_total", total, **where)
            if name == "queries":
                self.put("evaluator_quality_values_count", total, **where)

    def values(self, job: str, queries: Sequence[float], bad: Sequence[float]) -> None:
        """Adds settled values by bucket, with the share of bad ones, and leaves the mean alone."""
        where = {"job": job, "instance": "a", "model": "ranker", "variant": "prod"}
        where |= {"ranker": "served", "measure": "ndcg@10"}
        name = "evaluator_quality_values"
        pairs = list(zip(queries, bad, strict=True))
        self.put(f"{name}_bucket", counter(n * share for n, share in pairs), **where, le="0.1")
        self.put(f"{name}_bucket", counter(queries), **where, le="+Inf")
        self.put(f"{name}_count", counter(queries), **where)

    def coverage(self, job: str, queries: Sequence[float], shares: Sequence[float]) -> None:
        """Adds settled queries, with the share that was judged."""
        where = {"job": job, "instance": "a", "model": "ranker", "variant": "prod"}
        pairs = list(zip(queries, shares, strict=True))
        for judged, growth in (
            ("yes", [n * share for n, share in pairs]),
            ("no", [n * (1 - share) for n, share in pairs]),
        ):
            self.put("evaluator_queries_settled_total", counter(growth), **where, judged=judged)

    def delays(self, job: str, judgments: Sequence[float], late: Sequence[float]) -> None:
        """Adds applied judgments, with the share that took between one and two hours."""
        pairs = list(zip(judgments, late, strict=True))
        for bound, growth in (
            ("60.0", [n * (1 - share) for n, share in pairs]),
            ("3600.0", [n * (1 - share) for n, share in pairs]),
            ("7200.0", list(judgments)),
            ("+Inf", list(judgments)),
        ):
            name = "evaluator_judgment_delay_seconds_bucket"
            self.put(name, counter(growth), job=job, instance="a", le=bound)
        name = "evaluator_judgment_delay_seconds_count"
        self.put(name, counter(judgments), job=job, instance="a")

    def check(
        self,
        file: Path,
        *,
        firing: Mapping[str, Iterable[tuple[str, str]]],
        rules: Sequence[Path] = RULES,
        **more: object,
    ) -> tuple[int, str]:
        """Tests that exactly these (alert, job) fire at these times, and what *more* expects.

        No other alert may fire at any time.
        """
        ever = {alert for alerts in firing.values() for alert in alerts}
        end = f"{self.n * self.step_minutes}m"
        expectations = [(FIRING, at, alerts) for at, alerts in firing.items()] + [(EVER, end, ever)]
        expected = [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [
                    {"labels": labels_of(alertname=alert, **({"job": job} if job else {})),
                     "value": 1}
                    for alert, job in sorted(alerts)
                ],
            }
            for expr, at, alerts in expectations
        ]  # fmt: skip
        series = [
            {"series": path, "values": " ".join(_text(value) for value in values)}
            for path, values in self.series.items()
        ]
        step = f"{self.step_minutes}m"
        test = {"interval": step, "input_series": series, "promql_expr_test": expected, **more}
        document = {
            "rule_files": list(map(str, rules)),
            "evaluation_interval": step,
            "group_eval_order": GROUPS,
        }
        file.write_text(json.dumps({**document, "tests": [test]}))
        return promtool("test", "rules", file)


def _text(value: float | None) -> str:
    """A sample in the notation of promtool."""
    if value is None:
        return "stale"
    return "_" if isnan(value) else f"{value:.9f}".rstrip("0").rstrip(".")
