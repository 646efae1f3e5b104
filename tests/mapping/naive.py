"""A simple interpreter of mapping files, from TOML, which gives the expected messages.

It shares no code with the package. The standard library decodes records, and a message is a dict;
`LEFT_OUT` with the mapped timestamp, and `REFUSED`, are the other outcomes.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import floor

REFUSED = "refused"


class Refused(Exception):
    pass


class LeftOut(Exception):
    pass


NUMBERS = {"rank", "score", "propensity", "grade", "features", "scorers", "exposed_top"}


def steps_of(path):
    parts = re.findall(r"((?:[^.\[\\]|\\.)+)|\[(\d+)\]", path)
    return [int(index) if index else re.sub(r"\\(.)", r"\1", name) for name, index in parts]


def walk(value, path):
    for step in steps_of(path):
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def found(root, path, key, headers):
    if path.startswith("header:"):
        texts = [value.decode() for name, value in headers if name == path[7:]]
        return texts[-1] if texts else None
    if path == "key:":
        return None if key is None else key.decode()
    if path.startswith("key:"):
        return walk(json.loads(key), path[4:])
    return walk(root, path)


def rule_of(rule):
    rule = rule if isinstance(rule, dict) else {"path": rule}
    paths = rule.get("path", [])
    return rule, paths if isinstance(paths, list) else [paths]


def text_of(value):
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Refused


def number_of(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused
    return float(value)


def time_of(value, unit):
    if unit == "iso":
        if not isinstance(value, str):
            raise Refused
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise Refused from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return floor((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
    if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused
    return floor(
        Fraction(str(value))
        * {"s": 1000, "ms": 1, "us": Fraction(1, 1000), "ns": Fraction(1, 10**6)}[unit]
    )


def converted(name, rule, value):
    if name in {"timestamp_ms", "published_ms"}:
        return time_of(value, rule.get("unit", "ms"))
    if name in {"rank", "exposed_top"}:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused
        return value + rule.get("add", 0)
    if name == "exposed":
        if not isinstance(value, bool):
            raise Refused
        return value
    if name in NUMBERS:
        return number_of(value) + rule.get("add", 0)
    return text_of(value)


def key_of(value):
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else None


def replaced(rule, value):
    if "table" not in rule or value is None:
        return value
    if key_of(value) not in rule["table"]:
        raise LeftOut
    return rule["table"][key_of(value)]


REQUIRED = {"trace_id", "node_id", "timestamp_ms", "candidate_id", "grade"}
RANKING = ("trace_id", "node_id", "timestamp_ms", "model", "variant", "query")
JUDGMENT = ("trace_id", "node_id", "timestamp_ms", "source", "judgment_id")


class Interpreter:
    def __init__(self, log, table):
        self.log, self.table = log, table
        self.rows = table.get("rows")

    def outcome(self, value, key=None, headers=(), timestamp_ms=None):
        try:
            root = json.loads(value)
        except ValueError:
            return REFUSED
        try:
            root = self.opened(root)
            if root is None:
                return "left out", None
            try:
                return self.messages(root, key, headers, timestamp_ms)
            except LeftOut:
                return "left out", self.time_left_out(root, key, headers)
        except Refused:
            return REFUSED

    def opened(self, root):
        if self.table.get("envelope") == "debezium" and isinstance(root, dict):
            change = root.get("payload", root)
            if not isinstance(change, dict) or "after" not in change:
                raise Refused
            root = change["after"]
            if root is None:
                return None
        if not isinstance(root, dict):
            raise Refused
        return root

    def time_left_out(self, root, key, headers):
        try:
            return self.once("timestamp_ms", self.table, root, key, headers)
        except (Refused, LeftOut):
            return None

    def once(self, name, table, root, key, headers):
        if name not in table:
            return None
        rule, paths = rule_of(table[name])
        if "const" in rule:
            return converted(name, {}, rule["const"]) if name in NUMBERS else rule["const"]
        values = [found(root, path, key, headers) for path in paths]
        value = next((each for each in values if each is not None), None)
        value = replaced(rule, value)
        if value is None:
            if name in REQUIRED:
                raise Refused
            return None
        return converted(name, rule, value)

    def messages(self, root, key, headers, timestamp_ms):
        for path, accepted in self.table.get("where", {}).items():
            value = found(root, path, key, headers)
            if not any(
                value == each and isinstance(value, bool) == isinstance(each, bool)
                for each in accepted
            ):
                raise LeftOut
        for paths in self.table.get("present", []):
            either = paths if isinstance(paths, list) else [paths]
            if all(found(root, path, key, headers) is None for path in either):
                raise LeftOut
        for name, rule in self.table.items():
            if (
                isinstance(rule, dict)
                and "table" in rule
                and name not in {"where", "rows", "segments"}
            ):
                self.once(name, self.table, root, key, headers)
        make = self.ranking if self.log == "rankings" else self.judgments
        return make(root, key, headers, timestamp_ms)

    def head(self, names, root, key, headers, timestamp_ms):
        message = {"schema_version": 1}
        for name in names:
            value = self.once(name, self.table, root, key, headers)
            if name == "timestamp_ms" and value is None and name not in (self.rows or {}):
                value = timestamp_ms
            message[name] = value
        return message

    def row_values(self, root):
        """Raw rows: for each row a function from a rule to the raw value."""
        if "each" in self.rows:
            rows = walk(root, self.rows["each"])
            if isinstance(rows, str):
                try:
                    rows = json.loads(rows)
                except ValueError:
                    raise Refused from None
            if not isinstance(rows, list):
                raise Refused
            return [lambda path, row=row: walk(row, path) for row in rows]
        ids = walk(root, rule_of(self.rows["candidate_id"])[1][0])
        if not isinstance(ids, list):
            raise Refused

        def nth(path, at):
            array = walk(root, path)
            if array is None:
                return None
            if not isinstance(array, list) or len(array) != len(ids):
                raise Refused
            return array[at]

        every = [self.rows[name] for name in self.rows if name not in {"features", "scorers"}]
        every += [
            rule for group in ("features", "scorers") for rule in self.rows.get(group, {}).values()
        ]
        for rule in every:
            for path in rule_of(rule)[1]:
                array = walk(root, path)
                if array is not None and (not isinstance(array, list) or len(array) != len(ids)):
                    raise Refused
        return [lambda path, at=at: nth(path, at) for at in range(len(ids))]

    def cell(self, row, rule):
        rule, paths = rule_of(rule)
        if "const" in rule:
            return rule["const"]
        return next((value for path in paths if (value := row(path)) is not None), None)

    def column(self, name, rows, rule, need):
        raw = [self.cell(row, rule) for row in rows]
        if need != "every" and all(value is None for value in raw):
            return None if need == "same" else raw or None
        if need != "any" and None in raw:
            raise Refused
        return [
            None if value is None else converted(name, rule_of(rule)[0], value) for value in raw
        ]

    def ranking(self, root, key, headers, timestamp_ms):
        message = self.head(RANKING, root, key, headers, timestamp_ms)
        rows = self.row_values(root)
        message["candidate_ids"] = self.column(
            "candidate_id", rows, self.rows["candidate_id"], "every"
        )
        for name, written, need in (
            ("score", "scores", "same"),
            ("rank", "ranks", "same"),
            ("published_ms", "published_ms", "any"),
            ("propensity", "propensities", "same"),
            ("exposed", "exposed", "same"),
        ):
            if name in self.rows:
                message[written] = self.column(name, rows, self.rows[name], need)
        if message.get("scores") is None and message.get("ranks") is None:
            if rows and ("score" in self.rows or "rank" in self.rows):
                raise Refused
            message["ranks"] = list(range(1, len(rows) + 1))
        for group in ("features", "scorers"):
            rules = self.rows.get(group, {})
            columns = {name: self.column(group, rows, rule, "same") for name, rule in rules.items()}
            if any(column is not None for column in columns.values()):
                if None in columns.values():
                    raise Refused
                if group == "scorers":
                    message["scorers"] = columns
                else:
                    message["feature_names"] = list(columns)
                    message["features"] = [list(row) for row in zip(*columns.values(), strict=True)]
        message["exposed_top"] = self.once("exposed_top", self.table, root, key, headers)
        if "segments" in self.table:
            levels = {
                name: self.once("segment", {"segment": rule}, root, key, headers)
                for name, rule in self.table["segments"].items()
            }
            message["segments"] = {
                n: level for n, level in levels.items() if level is not None
            } or None
        return [{name: value for name, value in message.items() if value is not None}]

    def judgments(self, root, key, headers, timestamp_ms):
        if self.rows is None:
            message = self.head(JUDGMENT, root, key, headers, timestamp_ms)
            candidate = self.once("candidate_id", self.table, root, key, headers)
            message["grades"] = {candidate: self.once("grade", self.table, root, key, headers)}
            return [{name: value for name, value in message.items() if value is not None}]
        kept = []
        for row in self.row_values(root):
            try:
                for name, rule in self.rows.items():
                    if name != "each":
                        replaced(rule_of(rule)[0], self.cell(row, rule))
            except LeftOut:
                continue
            kept.append(row)
        if not kept:
            raise LeftOut
        common = self.head(JUDGMENT, root, key, headers, timestamp_ms)
        common["grade"] = self.once("grade", self.table, root, key, headers)
        of_rows = []
        for row in kept:
            message = dict(common)
            for name, rule in self.rows.items():
                if name == "each":
                    continue
                value = replaced(rule_of(rule)[0], self.cell(row, rule))
                if value is None and name in REQUIRED:
                    raise Refused
                message[name] = None if value is None else converted(name, rule_of(rule)[0], value)
            of_rows.append(message)
        grades = [{message.pop("candidate_id"): message.pop("grade")} for message in of_rows]
        if {*JUDGMENT} & self.rows.keys():
            messages = [
                {**message, "grades": grade} for message, grade in zip(of_rows, grades, strict=True)
            ]
        else:
            merged = {candidate: grade for each in grades for candidate, grade in each.items()}
            messages = [{**of_rows[0], "grades": merged}]
        return [
            {name: value for name, value in each.items() if value is not None} for each in messages
        ]
