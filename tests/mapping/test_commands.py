"""`--mapping`, `mapping try` and `mapping presets`."""

import json
import random
from datetime import UTC, datetime

import pytest

from evaluator.cli import main
from evaluator.mapping import document

MAPPING = """
[rankings]
topic = "search.impressions"
where = { type = ["impression"] }
trace_id = "session"
node_id = "query_id"
timestamp_ms = { path = "at", unit = "iso" }
[rankings.rows]
each = "results"
candidate_id = "product"
score = "relevance"
rank = { path = "position", add = 1 }
[judgments]
topic = "search.clicks"
trace_id = "session"
node_id = "query_id"
timestamp_ms = { path = "at", unit = "s" }
judgment_id = "id"
candidate_id = "product"
grade = { path = "action", table = { click = 1, buy = 3 } }
"""


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture
def worlds(tmp_path):
    """The same world as foreign records and as canonical messages, and the mapping."""
    chance, now_ms = random.Random(5), 1_769_846_400_000
    rankings, judgments, impressions, clicks = [], [], [], []
    for query in range(60):
        now_ms += chance.randrange(60_000)
        products = chance.sample(range(50), chance.randrange(6))
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        session = f"s{query // 2}"
        key = {"trace_id": session, "node_id": str(query)}
        scores = [round(chance.random(), 2) for _ in products]
        impressions.append({
            "type": "impression", "session": session, "query_id": query, "at": at,
            "ms": now_ms, "results": [
                {"product": product, "position": place, "relevance": score}
                for place, (product, score) in enumerate(zip(products, scores, strict=True))
            ],
        })  # fmt: skip
        impressions.append({"type": "banner"})
        rankings.append({
            "schema_version": 1, **key, "timestamp_ms": now_ms, "scores": scores,
            "candidate_ids": list(map(str, products)), "ranks": [n + 1 for n in range(len(products))],
        })  # fmt: skip
        for product in products[:2]:
            action = chance.choice(["click", "buy", "view"])
            judged_ms = now_ms + 1_000 * chance.randrange(5_000)
            clicks.append((judged_ms, {
                "id": len(clicks), "session": session, "query_id": query, "product": product,
                "action": action, "at": judged_ms / 1000,
            }))  # fmt: skip
            if action != "view":
                judgments.append((judged_ms, {
                    "schema_version": 1, **key, "timestamp_ms": judged_ms,
                    "judgment_id": str(len(clicks) - 1),
                    "grades": {str(product): {"click": 1, "buy": 3}[action]},
                }))  # fmt: skip
    in_order = {"key": lambda each: each[0]}
    write(tmp_path / "twin" / "rankings.ndjson", rankings)
    write(tmp_path / "twin" / "judgments.ndjson", [m for _, m in sorted(judgments, **in_order)])
    write(tmp_path / "foreign" / "search.impressions.ndjson", impressions)
    write(tmp_path / "foreign" / "search.clicks.ndjson", [m for _, m in sorted(clicks, **in_order)])
    (tmp_path / "m.toml").write_text(MAPPING)
    return tmp_path


def replayed(worlds, name, *arguments):
    out = worlds / f"out-{name}"
    assert main(["replay", f"--source=file://{worlds / name}", f"--out={out}", *arguments]) == 0
    return out


def test_a_foreign_world_gives_the_results_of_its_canonical_twin(worlds):
    twin, foreign = (
        replayed(worlds, "twin"),
        replayed(worlds, "foreign", f"--mapping={worlds / 'm.toml'}"),
    )
    require_equal(twin, foreign)


def require_equal(twin, foreign):
    """Equal results, except for records left out."""
    assert (twin / "evaluations.ndjson").read_bytes() == (
        foreign / "evaluations.ndjson"
    ).read_bytes()
    assert (twin / "windows.ndjson").read_bytes() == (foreign / "windows.ndjson").read_bytes()
    settled = [
        [
            {n: v for n, v in json.loads(row).items() if n != "offset"}
            for row in lines(out / "settled.ndjson")
        ]
        for out in (twin, foreign)
    ]
    assert settled[0] == settled[1] != []
    totals = [json.loads((out / "totals.json").read_text()) for out in (twin, foreign)]
    for ledger in totals[1]["ledger"].values():
        assert ledger["left_out"] > 0
        ledger["read"] -= ledger.pop("left_out")
    for ledger in totals[0]["ledger"].values():
        assert ledger.pop("left_out") == 0
    assert totals[0] == totals[1]


def test_functions_of_packages_map_rankings(worlds, monkeypatch):
    class Point:
        name, dist = "impressions", None

        @staticmethod
        def load():
            return lambda record: [json.loads(record.value), json.loads(record.value)]

    monkeypatch.setattr(document, "entry_points", lambda group: [Point])
    (worlds / "m.toml").write_text('[rankings]\nfunction = "impressions"')
    twin = replayed(worlds, "twin")
    settled = (twin / "settled.ndjson").read_bytes()
    out = replayed(worlds, "twin", f"--mapping={worlds / 'm.toml'}", "--force")
    assert (out / "settled.ndjson").read_bytes() == settled  # with the offsets of the records
    ledger = json.loads((out / "totals.json").read_text())["ledger"]["rankings"]
    assert (ledger["read"], ledger["duplicate"], ledger["open"] + ledger["expired"]) == (
        120,
        60,
        60,
    )


@pytest.mark.slow(alone=False)
def test_batches_do_not_change_the_results_of_a_mapping(worlds):
    mapping = f"--mapping={worlds / 'm.toml'}"
    out = replayed(worlds, "foreign", mapping)
    before = (out / "totals.json").read_bytes(), (out / "settled.ndjson").read_bytes()
    out = replayed(worlds, "foreign", mapping, "--force", "--set=max_poll_records=7")
    assert before == ((out / "totals.json").read_bytes(), (out / "settled.ndjson").read_bytes())


def test_a_dead_letter_is_the_original_record(worlds):
    with (worlds / "foreign" / "search.impressions.ndjson").open("a") as file:
        file.write('{"type": "impression", "session": "s"}\n')
    out = replayed(worlds, "foreign", f"--mapping={worlds / 'm.toml'}")
    (letter,) = map(json.loads, lines(out / "dead-letters.ndjson"))
    assert (letter["topic"], letter["offset"], letter["reason"]) == (
        "search.impressions",
        120,
        "mapping",
    )
    assert letter["detail"] == (
        "rankings.node_id: query_id is missing; needed: text. "
        "rankings.timestamp_ms: at is missing; needed: a time"
    )
    assert json.loads((out / "totals.json").read_text())["dead_letters"]["mapping"] == 1


@pytest.mark.parametrize(
    ("old", "new", "arguments", "expected"),
    [
        ('"session"', '"header:x"', [], "[rankings] names header:x, and files have no keys and headers"),
        ('topic = "search.clicks"', "", ["--set=judgments_topic=search.impressions"], "is the topic of both logs. Name two topics; if one has both kinds of record, copy it into two with `evaluator map "),
        ("", "", ["--set=judgments_topic=other"], "judgments_topic is other, and the topic of [judgments]"),
        ("[rankings]", "[ranking]", [], "m.toml:2: ranking is not known here"),
    ],
)  # fmt: skip
def test_an_unsupported_mapping_is_a_usage_error(worlds, capsys, old, new, arguments, expected):
    (worlds / "m.toml").write_text(MAPPING.replace(old, new))
    source, out = f"--source=file://{worlds / 'foreign'}", f"--out={worlds / 'out'}"
    assert main(["replay", source, out, f"--mapping={worlds / 'm.toml'}", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_mapping_try_shows_each_record_and_a_summary(worlds, capsys):
    with (worlds / "foreign" / "search.clicks.ndjson").open("r+") as file:
        rest = file.read()
        file.seek(0)
        odd = '{"action": "click", "session": {}, "product": "p"}\n{"action": "Click"}\n'
        file.write(odd + rest)
    arguments = [f"--mapping={worlds / 'm.toml'}", f"--source=file://{worlds / 'foreign'}"]
    assert main(["mapping", "try", *arguments, "--sample=200"]) == 5
    out = capsys.readouterr().out
    assert (
        'search.impressions-0:0  message   {"schema_version":1,"trace_id":"s0","node_id":"0"' in out
    )
    assert 'search.impressions-0:1  left out  where: type is "banner"\n' in out
    assert (
        "search.clicks-0:0  refused   mapping: judgments.trace_id: session is an object; "
        "needed: a text or an integer. judgments.node_id: query_id is missing; needed: text. "
        "judgments.timestamp_ms: at is missing; needed: a time\n" in out
    )
    views = out.count('left out  judgments.grade: action is "view", not in the table\n')
    assert (
        f"  {views + 1:>6} x left out  judgments.grade: action is ..., not in the table "
        "(first: search.clicks-0:1: left out  judgments.grade: action is "
        '"Click", not in the table)\n' in out
    )
    assert (
        "[rankings] search.impressions: 120 records: 60 messages, 60 left out, 0 refused\n" in out
    )
    assert '      60 x left out  where: type is "banner" (first: search.impressions-0:1)\n' in out
    assert "  timestamps from 2026-01-31T08:0" in out
    assert "judgments are of a ranking in this sample\n" in out
    assert main(["mapping", "try", *arguments, "--sample=1"]) == 5
    assert main(["mapping", "try", *arguments, "--sample=0"]) == 2


def test_presets_are_listed_and_printed(capsys):
    assert main(["mapping", "presets"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "clicks",
        "otel-genai",
        "ubi",
    ]
    assert main(["mapping", "presets", "ubi"]) == 0
    assert "query_response_hit_ids" in capsys.readouterr().out
    assert main(["mapping", "presets", "none"]) == 2
    assert "Presets: clicks, otel-genai, ubi." in capsys.readouterr().err


def require_ubi(queries, events):
    """What UBI 1.3 requires of queries and events: members, and the types of those that are there.

    Source: https://o19s.github.io/ubi/schema/1.3.0/, query.request and event. Its `oneOf` of a text
    and of the same text as an enumeration or a UUID is not applied: by the letter, none of its own
    actions would be valid.
    """
    short = {"application", "client_id", "query_id", "action_name", "object_id_field"}

    def require(row, required, **kinds):
        assert required <= row.keys()
        kinds |= dict.fromkeys(short, str)
        assert all(isinstance(value, kinds[name]) for name, value in row.items())
        assert all(len(row[name]) <= 100 for name in short & row.keys())
        if "timestamp" in row:
            assert datetime.fromisoformat(row["timestamp"]).tzinfo  # as OpenSearch requires

    for query in queries:
        require(query, {"user_query"}, user_query=str, timestamp=str, query_response_hit_ids=list)
        assert all(isinstance(hit, str) for hit in query.get("query_response_hit_ids", ()))
    for event in events:
        at = {"timestamp": str, "message_type": str, "event_attributes": dict}
        require(event, {"action_name", "timestamp"}, **at)
        attributes = event["event_attributes"]
        require(attributes, {"position"}, position=dict, object=dict)
        (where,) = attributes["position"].items()
        if where[0] == "xy":
            require(where[1], {"x", "y"}, x=int | float, y=int | float)
        else:
            assert (where[0], type(where[1])) == ("ordinal", int)
        require(attributes.get("object", {"object_id": 1}), {"object_id"}, object_id=str | int)


def test_records_of_user_behavior_insights_are_mapped_by_the_preset(tmp_path, capsys):
    main(["mapping", "presets", "ubi"])
    (tmp_path / "ubi.toml").write_text(capsys.readouterr().out)
    query = {"application": "shop", "query_id": "q-1", "client_id": "c", "user_query": "shoes",
             "timestamp": "2026-01-31T08:00:00Z", "query_response_hit_ids": ["7", "8"]}  # fmt: skip
    event = {"action_name": "click", "query_id": "q-1", "client_id": "c", "message_type": "CLICK",
             "timestamp": "2026-01-31T08:00:05Z",
             "event_attributes": {"object": {"object_id": 8}, "position": {"ordinal": 2}}}  # fmt: skip
    typed = {**query, "query_id": "q-2"}  # its hits are not recorded
    typed.pop("query_response_hit_ids")
    write(tmp_path / "logs" / "ubi_queries.ndjson", [query, typed])
    nowhere = {"event_attributes": {"position": {"xy": {"x": 4, "y": 2.5}}}}
    events = [event, {**event, "action_name": "impression"}, {**event, **nowhere}]
    require_ubi([query, typed], events)
    write(tmp_path / "logs" / "ubi_events.ndjson", events)
    arguments = [f"--source=file://{tmp_path / 'logs'}", f"--mapping={tmp_path / 'ubi.toml'}"]
    assert main(["replay", *arguments, f"--out={tmp_path / 'out'}"]) == 0
    (row,) = map(json.loads, lines(tmp_path / "out" / "evaluations.ndjson"))
    assert row["values"]["served"]["mrr"] == 1 / 2  # the second hit was clicked
    assert main(["mapping", "try", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "ubi_queries: 2 records: 1 messages, 1 left out, 0 refused" in shown
    assert "ubi_events: 3 records: 1 messages, 2 left out, 0 refused" in shown


def test_a_world_of_user_behavior_insights_equals_its_canonical_twin(tmp_path, capsys):
    main(["mapping", "presets", "ubi"])
    (tmp_path / "ubi.toml").write_text(capsys.readouterr().out)
    chance, now_ms = random.Random(8), 1_769_846_400_000
    grades = {"click": 1, "watch": 1, "add_to_cart": 2, "purchase": 3, "view": None}
    topics = {name: [] for name in ("ubi_queries", "ubi_events", "rankings", "judgments")}
    for query in range(80):
        now_ms += chance.randrange(9_000)
        hits = [str(each) for each in chance.sample(range(30), 6)]
        head = {"schema_version": 1, "trace_id": f"q-{query}", "node_id": "query"}
        both = {"application": "shop", "query_id": f"q-{query}", "client_id": "c"}
        topics["ubi_queries"] += [
            {
                **both,
                "user_query": "shoes",
                "timestamp": iso(now_ms),
                "query_response_hit_ids": hits,
            },
            {**both, "user_query": "none", "timestamp": iso(now_ms)},
        ]
        topics["rankings"].append({
            **head, "timestamp_ms": now_ms, "model": "shop", "query": "shoes",
            "candidate_ids": hits, "ranks": [*range(1, 7)],
        })  # fmt: skip
        for k, action in enumerate(["view", *chance.choices(list(grades), k=chance.randrange(3))]):
            hit, at_ms = chance.choice(hits), now_ms + 10 * (k + 1)
            position = chance.choice([{"ordinal": hits.index(hit) + 1}, {"xy": {"x": 3, "y": 4.5}}])
            topics["ubi_events"].append({
                **both, "action_name": action, "timestamp": iso(at_ms),
                "event_attributes": {
                    "object": {"object_id": chance.choice([hit, int(hit)]), "object_id_field": "sku"},
                    "position": position,
                },
            })  # fmt: skip
            if grades[action] is not None:
                graded = {"source": "ubi", "grades": {hit: grades[action]}}
                topics["judgments"].append({**head, "timestamp_ms": at_ms, **graded})
    require_ubi(topics["ubi_queries"], topics["ubi_events"])
    for name, rows in topics.items():
        write(tmp_path / ("foreign" if "ubi" in name else "twin") / f"{name}.ndjson", rows)
    foreign = replayed(tmp_path, "foreign", f"--mapping={tmp_path / 'ubi.toml'}")
    require_equal(replayed(tmp_path, "twin"), foreign)


def iso(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_mapping_try_names_members_that_no_message_has(worlds, capsys):
    text = (worlds / "m.toml").read_text().replace("[rankings.rows]", '''query = "txt"
segments = { kind = "type", "a.b" = "colour" }
model = { const = "m" }
[rankings.rows]
features = { x = "f.x", y = "f.y" }
propensity = "p"
exposed = "relevance.seen"''')  # fmt: skip
    (worlds / "m.toml").write_text(text)
    main(
        [
            "mapping",
            "try",
            f"--mapping={worlds / 'm.toml'}",
            f"--source=file://{worlds / 'foreign'}",
        ]
    )
    missing = "query, rankings.segments.a.b, rankings.rows.propensity, rankings.rows.exposed, "
    features = "rankings.rows.features.x, rankings.rows.features.y"
    shown = capsys.readouterr().out
    assert f"  in no message: rankings.{missing}{features}; check their paths\n" in shown
    assert shown.count("in no message") == 1


def test_mapping_try_names_traces_whose_records_never_meet(worlds, capsys):
    clicks = worlds / "foreign" / "search.clicks.ndjson"
    clicks.rename(worlds / "foreign" / "search.clicks-1.ndjson")
    arguments = [f"--mapping={worlds / 'm.toml'}", f"--source=file://{worlds / 'foreign'}"]
    main(["mapping", "try", *arguments, "--sample=1000"])
    assert "traces are in partitions of different numbers, so their judgments never meet" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'node_id = "query_id"\ntimestamp_ms = { path = "at", unit = "s" }',
            'node_id = { const = "n" }\ntimestamp_ms = { path = "at", unit = "s" }',
            "have rankings and judgments, and none the same node_id. Map node_id of both topics",
        ),
        (
            'candidate_id = "product"\ngrade',
            'candidate_id = "action"\ngrade',
            "judged candidates is in its ranking. Map candidate_id of both topics",
        ),
        (
            '{ path = "at", unit = "s" }',
            '"at"',
            'timestamps of search.clicks are seconds, most likely. Set unit = "s"',
        ),
        (
            'timestamp_ms = { path = "at", unit = "iso" }',
            'timestamp_ms = { path = "ms", unit = "s" }',
            'timestamps of search.impressions are milliseconds, most likely. Set unit = "ms"',
        ),
        (
            "{ click = 1, buy = 3 }",
            "{ Click = 1, Buy = 3 }",
            "no message: nothing of this topic would be evaluated",
        ),
    ],
)
def test_mapping_try_reports_a_mapping_without_usable_results(worlds, capsys, old, new, expected):
    assert MAPPING.count(old) == 1
    (worlds / "m.toml").write_text(MAPPING.replace(old, new))
    arguments = [f"--mapping={worlds / 'm.toml'}", f"--source=file://{worlds / 'foreign'}"]
    assert main(["mapping", "try", *arguments, "--sample=1000"]) == 5
    assert expected in capsys.readouterr().out


@pytest.mark.slow(alone=False)
def test_batches_of_clicks_give_the_results_of_single_clicks(worlds):
    """Records with three clicks each, of several queries, some of them of no ranking."""
    clicks = [json.loads(line) for line in lines(worlds / "foreign" / "search.clicks.ndjson")]
    clicks += [{**click, "query_id": 7_000 + n} for n, click in enumerate(clicks[:9])]
    clicks.sort(key=lambda click: click["at"])
    write(worlds / "foreign" / "search.clicks.ndjson", clicks)
    batches = [{"clicks": clicks[n : n + 3]} for n in range(0, len(clicks), 3)]
    write(worlds / "batched" / "search.clicks.ndjson", batches)
    impressions = worlds / "foreign" / "search.impressions.ndjson"
    (worlds / "batched" / impressions.name).write_bytes(impressions.read_bytes())
    head, _, of_click = MAPPING.partition("[judgments]\n")
    topic, _, members = of_click.partition("\n")
    batched = f'{head}[judgments]\n{topic}\n[judgments.rows]\neach = "clicks"\n{members}'
    (worlds / "batched.toml").write_text(batched)
    single = replayed(worlds, "foreign", f"--mapping={worlds / 'm.toml'}")
    found = []
    for max_records in (5_000, 1):
        out = replayed(
            worlds, "batched", f"--mapping={worlds / 'batched.toml'}", "--force",
            f"--set=max_poll_records={max_records}", "--set=early_ms=1000",
        )  # fmt: skip
        found.append([(out / name).read_bytes() for name in ("totals.json", "dead-letters.ndjson")])
        assert lines(out / "evaluations.ndjson") == lines(single / "evaluations.ndjson")
    assert found[0] == found[1]
    counts = json.loads(found[0][0])["ledger"]["judgments"]
    expected = json.loads((single / "totals.json").read_text())["ledger"]["judgments"]
    for name in ("applied", "orphan", "early", "duplicate", "conflicting"):
        assert counts[name] == expected[name]
    assert counts["orphan"] > 0
    letters = [json.loads(line) for line in found[0][1].splitlines()]
    assert {letter["reason"] for letter in letters} == {"orphan"}
    assert all(letter["headers"][0][0] == "index" for letter in letters)
    assert max(letter["offset"] for letter in letters) < len(batches)
