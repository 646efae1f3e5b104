"""Messages of foreign records: their frozen bytes, every primitive, and every refusal."""

import json

import pytest

from evaluator.mapping import document, messages
from evaluator.mapping.document import read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import MAX_BYTES, MAX_MESSAGES, LeftOut, Record
from evaluator.wire.messages.malformed import Malformed

HEAD = '[rankings]\ntrace_id = "t"\nnode_id = { const = "n" }\n'
CLICK = '[judgments]\ntrace_id = "t"\nnode_id = { const = "n" }\n'


def mapper(text):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return messages_of(mapping)


def only(text, value, *record):
    (message,) = mapper(text)(Record(value, *record))
    return message


def refused(text, value, *record):
    outcome = mapper(text)(Record(value, *record))
    assert isinstance(outcome, Malformed), outcome
    return outcome.reason, outcome.detail


def test_the_bytes_of_a_ranking_are_frozen():
    text = """
    [rankings]
    segments = { locale = "loc", device = "dev" }
    query = "q"
    variant = "v"
    model = { const = "shop" }
    timestamp_ms = "at"
    exposed_top = "top"
    node_id = "n"
    trace_id = "t"
    [rankings.rows]
    each = "rows"
    exposed = "seen"
    propensity = "p"
    published_ms = "born"
    features = { b = "x", a = "y" }
    scorers = { bm25 = "y" }
    rank = { path = "pos", add = 1 }
    score = "s"
    candidate_id = "id"
    """
    value = (
        b'{"t":1,"n":"\\u00e9\\"","at":5,"q":"a b","v":"A","loc":"de","dev":null,"top":2,"rows":['
        b'{"id":7,"pos":0,"s":1,"x":0.1,"y":1e21,"p":0.5,"seen":true,"born":3},'
        b'{"id":"z","pos":1,"s":-0.25,"x":1e-7,"y":100,"p":1,"seen":false,"born":null}]}'
    )
    assert only(text, value) == (
        b'{"schema_version":1,"trace_id":"1","node_id":"\xc3\xa9\\"","timestamp_ms":5,'
        b'"model":"shop","variant":"A","query":"a b","candidate_ids":["7","z"],'
        b'"scores":[1.0,-0.25],"ranks":[1,2],"scorers":{"bm25":[1e21,100.0]},'
        b'"feature_names":["b","a"],"features":[[0.1,1e21],[1e-7,100.0]],'
        b'"published_ms":[3,null],"propensities":[0.5,1.0],"exposed":[true,false],'
        b'"exposed_top":2,"segments":{"locale":"de"}}'
    )
    for everywhere in ("exposed_top = 10", "exposed_top = { const = 10 }"):
        assert b'"exposed_top":10,' in only(text.replace('exposed_top = "top"', everywhere), value)


def test_the_bytes_of_a_judgment_are_frozen():
    text = CLICK + (
        'judgment_id = "id"\nsource = { const = "click" }\ntimestamp_ms = "at"\n'
        'candidate_id = "c"\ngrade = "g"'
    )
    assert only(text, b'{"g":2,"c":"x","at":5,"id":9,"t":"s"}') == (
        b'{"schema_version":1,"trace_id":"s","node_id":"n","timestamp_ms":5,"source":"click",'
        b'"judgment_id":"9","grades":{"x":2.0}}'
    )


def test_a_message_has_the_timestamp_of_its_record_if_none_is_mapped():
    message = only(
        CLICK + 'candidate_id = "c"\ngrade = "g"', b'{"t":"s","c":"x","g":1}', None, (), 77
    )
    assert b'"timestamp_ms":77' in message


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("ms", b"1500", 1500),
        ("ms", b'"1500"', 1500),
        ("ms", b"1500.9", 1500),
        ("us", b"1999", 1),
        ("us", b"-1", -1),  # rounds down
        ("ns", b"1999999", 1),
        ("s", b"1.0019", 1001),
        ("s", b"1763690000.123", 1_763_690_000_123),
        ("iso", b'"1970-01-01T01:00:00.0019+01:00"', 1),
        ("iso", b'"1970-01-01T00:00:00.001999999Z"', 1),
        ("iso", b'"1970-01-01 00:00:01"', 1000),
    ],
)
def test_units_of_time_round_down(unit, value, expected):
    text = (
        CLICK
        + f'timestamp_ms = {{ path = "at", unit = "{unit}" }}\ncandidate_id = "c"\ngrade = "g"'
    )
    message = only(text, b'{"t":"s","c":"x","g":1,"at":' + value + b"}")
    assert b'"timestamp_ms":%d,' % expected in message


def test_the_first_existing_path_counts_also_in_headers_and_keys():
    text = '[judgments]\ntrace_id = ["a.b", "header:x-s", "key:k.k", "key:"]\nnode_id = "n"\n'
    text += 'candidate_id = "c"\ngrade = "g"'
    value = b'{"a":{"b":null},"n":"n","c":"x","g":1}'
    headers = (("x-s", b"old"), ("x-s", b"h"))
    assert b'"trace_id":"h"' in only(text, value, b'{"k":{"k":4}}', headers)
    assert b'"trace_id":"4"' in only(text, value, b'{"k":{"k":4}}')
    assert b'"trace_id":"whole"' in only(text, value, b"whole")
    deep = b"[" * 100_000
    assert b'"trace_id":"[[[' in only(text, value, deep)  # no JSON, so the last path counts
    assert b'"trace_id":"v"' in only(text, value.replace(b"null", b'"v"'), b"whole", headers)
    assert refused(text, value)[1] == (
        "judgments.trace_id: a.b is null; header:x-s is missing; key:k.k is missing; "
        "key: is missing; needed: text"
    )


def test_a_dot_and_an_index_in_a_path():
    text = CLICK + 'candidate_id = "a\\\\.b.c[1].d"\ngrade = "g"'
    assert b'"grades":{"x":1.0}' in only(text, b'{"t":"s","g":1,"a.b":{"c":[0,{"d":"x"}]}}')


def test_the_type_of_an_element_by_index_is_checked_in_rows():
    text = (
        '[rankings]\ntrace_id="t"\nnode_id="n"\n[rankings.rows]\neach="r"\ncandidate_id="c"\n'
        'score="s[0]"\nfeatures={a="o.x", b={path="o.x", add=-1}}\nscorers={"it\'s"="o.x"}'
    )

    def value(score):
        row = {"c": "x", "s": [score], "o": {"x": 2}}
        return json.dumps({"t": "t", "n": "n", "r": [row]}).encode()

    message = json.loads(only(text, value(3)))
    assert message["scores"] == [3.0]
    assert (message["feature_names"], message["features"]) == (["a", "b"], [[2.0, 1.0]])
    assert message["scorers"] == {"it's": [2.0]}
    assert b'"scores":[3.0]' in only(text, value(3))
    assert 'r[0].s[0] is "x"; needed: a number' in refused(text, value("x"))[1]


def test_a_record_left_out_by_where_has_its_mapped_timestamp():
    text = CLICK + 'where = { type = ["click", 1], a.b = [true] }\ntimestamp_ms = "at"\n'
    text += 'candidate_id = "c"\ngrade = "g"'
    mapped = mapper(text)
    assert mapped(Record(b'{"type":"view","at":5}')) == LeftOut('where: type is "view"', 5)
    assert mapped(Record(b'{"type":true,"at":"5x"}')) == LeftOut("where: type is true", None)
    assert mapped(Record(b'{"type":1}')) == LeftOut("where: a.b is missing", None)
    assert isinstance(
        mapped(Record(b'{"type":1,"a":{"b":true},"t":"s","at":1,"c":"x","g":0}')), list
    )


def test_a_record_left_out_by_a_table_is_not_refused():
    text = CLICK + 'candidate_id = "c"\ngrade = { path = "act", table = { click = 1, 7 = -1 } }'
    mapped = mapper(text)
    assert mapped(Record(b'{"act":"view"}')) == LeftOut(
        'judgments.grade: act is "view", not in the table', None
    )
    assert b"{" + b'"x":-1.0}' in only(text, b'{"t":"s","c":"x","act":7}')
    assert refused(text, b'{"t":"s","c":"x"}')[1] == (
        "judgments.grade: act is missing; needed: a number"
    )


def test_rows_without_score_and_rank_keep_their_order():
    text = HEAD + '[rankings.rows]\ncandidate_id = "ids"'
    assert b'"candidate_ids":["b","7"],"ranks":[1,2]}' in only(text, b'{"t":"s","ids":["b",7]}')
    assert b'"candidate_ids":[],"ranks":[]}' in only(text, b'{"t":"s","ids":[]}')
    text = HEAD + '[rankings.rows]\neach = "r"\ncandidate_id = "id"'
    assert b'"candidate_ids":["b"],"ranks":[1]}' in only(text, b'{"t":"s","r":[{"id":"b"}]}')


def test_rows_of_judgments_are_grades_of_one_message():
    text = CLICK + 'judgment_id = "j"\n[judgments.rows]\neach = "r"\ncandidate_id = "c"\n'
    text += 'grade = { path = "a", table = { click = 1, buy = 3 } }'
    value = b'{"t":"s","j":"1","r":[{"c":"x","a":"buy"},{"a":"view"},{"c":"y","a":"click"}]}'
    assert b'"judgment_id":"1","grades":{"x":3.0,"y":1.0}}' in only(text, value)
    mapped = mapper(text)
    assert mapped(Record(b'{"r":[{"a":"view"}]}')).why == "rows: no row is in the tables"
    assert mapped(Record(b'{"r":[]}')).why == "rows: no row"


def test_rows_with_their_own_members_are_separate_messages():
    text = '[judgments]\ntrace_id = "t"\nsource = { const = "s" }\ngrade = { const = 1 }\n'
    text += '[judgments.rows]\neach = "r"\nnode_id = "n"\ntimestamp_ms = "at"\ncandidate_id = "c"'
    mapped = mapper(text)
    assert mapped(Record(b'{"t":"s","r":[{"n":1,"at":2,"c":"x"},{"n":2,"at":3,"c":"y"}]}')) == [
        b'{"schema_version":1,"trace_id":"s","node_id":"1","timestamp_ms":2,"source":"s","grades":{"x":1.0}}',
        b'{"schema_version":1,"trace_id":"s","node_id":"2","timestamp_ms":3,"source":"s","grades":{"y":1.0}}',
    ]
    rows = b",".join([b'{"n":1,"at":2,"c":"x"}'] * (MAX_MESSAGES + 1))
    assert mapped(Record(b'{"t":"s","r":[' + rows + b"]}")) == Malformed(
        "limit", "a record gives at most 1,000 messages, with 16 MiB"
    )


def test_mapping_of_a_record_stops_at_the_size_limit(monkeypatch):
    made = []
    monkeypatch.setattr(messages, "encode", lambda message: made.append(message) or b"x" * 100_000)
    text = '[judgments]\ntrace_id = "t"\nsource = { const = "s" }\ngrade = { const = 1 }\n'
    text += '[judgments.rows]\neach = "r"\nnode_id = "n"\ntimestamp_ms = "at"\ncandidate_id = "c"'
    rows = b",".join([b'{"n":1,"at":2,"c":"x"}'] * MAX_MESSAGES)
    outcome = mapper(text)(Record(b'{"t":"s","r":[' + rows + b"]}"))
    assert isinstance(outcome, Malformed)
    assert outcome.reason == "limit"
    assert len(made) * 100_000 < MAX_BYTES + 200_000


def test_debezium_reads_after_and_leaves_out_deletes():
    text = (
        HEAD.replace("\n", '\nenvelope = "debezium"\n', 1) + '[rankings.rows]\ncandidate_id = "c"'
    )
    after = b'{"t":"s","c":["x"]}'
    assert b'"trace_id":"s"' in only(text, b'{"op":"c","after":' + after + b"}")
    assert b'"trace_id":"s"' in only(text, b'{"schema":{},"payload":{"after":' + after + b"}}")
    assert mapper(text)(Record(b'{"op":"d","after":null}')) == LeftOut(
        "envelope: `after` is null, as in a delete", None
    )
    assert refused(text, after)[1] == "the record has no `after`: it is not a change event"


def test_cloudevents_are_structured_or_binary():
    text = HEAD.replace('"t"', '"data.t"').replace(
        "\n", '\nenvelope = "cloudevents"\nwhere = { type = ["x"] }\n', 1
    )
    text += '[rankings.rows]\ncandidate_id = "data.c"'
    structured = b'{"specversion":"1.0","type":"x","data":{"t":"s","c":["1"]}}'
    binary = (("ce_specversion", b"1.0"), ("ce_type", b"x"))
    assert only(text, structured) == only(text, b'{"t":"s","c":["1"]}', None, binary)
    assert isinstance(mapper(text)(Record(structured.replace(b'"x"', b'"y"'))), LeftOut)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", ("decode", "the value is empty; leave it out of the topic")),
        (b"{", ("decode", "not JSON: Input data was truncated")),
        (b"\xff", ("decode", "not JSON: JSON is malformed: invalid character (byte 0)")),
        (b"[" * 65 + b"]" * 65, ("limit", "nested more than 64 deep")),
        (b"[]", ("mapping", "the record is an array, not an object")),
        (b'{"r":[]}', ("mapping", "rankings.trace_id: t is missing; needed: text")),
        (b'{"t":{},"r":[]}', ("mapping", "rankings.trace_id: t is an object; needed: a text or an integer")),
        (b'{"t":1.5,"r":[]}', ("mapping", "rankings.trace_id: t is 1.5; needed: a text or an integer")),
        (b'{"t":"s"}', ("mapping", "rows.each: r is missing; needed: an array")),
        (b'{"t":"s","r":{}}', ("mapping", "rows.each: r is an object; needed: an array")),
        (b'{"t":"s","r":[7]}', ("mapping", "rankings.rows.candidate_id: r[0].id is missing, because r[0] is 7; needed: text")),
        (b'{"t":"s","r":[{"id":"x","s":1},{"id":"y"}]}', ("mapping", "rankings.rows.score: r[1].s is missing; needed: a number")),
        (b'{"t":"s","r":[{"id":"x"}]}', ("mapping", "rankings.rows.score: r[0].s is missing; needed: a number")),
        (b'{"t":"s","r":[{"id":"x","s":"1"}]}', ("mapping", 'rankings.rows.score: r[0].s is "1"; needed: a number')),
        (b'{"t":"s","r":[{"id":"x","s":' + b"9" * 400 + b"}]}", ("mapping", "needed: a number that a double can hold")),
        (b'{"t":"s","r":[{"id":"x","s":1,"f":{"a":1}}]}', ("mapping", "rankings.rows.features.b: r[0].f.b is missing; needed: a number")),
        (b'{"t":"s","r":[{"id":"x","s":1,"e":1}]}', ("mapping", "rankings.rows.exposed: r[0].e is 1; needed: true or false")),
    ],
)  # fmt: skip
def test_a_refusal_has_the_path_and_the_found_value(value, expected):
    text = HEAD + '[rankings.rows]\neach = "r"\ncandidate_id = "id"\nscore = "s"\nexposed = "e"\n'
    text += 'features = { a = "f.a", b = "f.b" }'
    reason, detail = refused(text, value)
    assert reason == expected[0]
    assert expected[1] in detail


def test_parallel_arrays_must_have_equal_lengths():
    text = HEAD + '[rankings.rows]\ncandidate_id = "ids"\nscore = "s"'
    assert b'"scores":[1.0]' in only(text, b'{"t":"s","ids":["a"],"s":[1]}')
    assert refused(text, b'{"t":"s","ids":["a"],"s":[]}')[1] == (
        "rankings.rows.score: s has 0 elements; needed: 1, as the ids"
    )
    assert refused(text, b'{"t":"s","ids":"a"}')[1] == (
        'rankings.rows.candidate_id: ids is "a"; needed: an array'
    )
    assert refused(text, b'{"t":"s"}')[1] == (
        "rankings.rows.candidate_id: ids is missing; needed: an array"
    )


def test_a_function_gives_messages_and_its_errors_are_dead_letters(monkeypatch):
    class Point:
        name, dist = "f", None

        @staticmethod
        def load():
            return lambda record: [{"n": n} for n in range(int(record.value))]

    monkeypatch.setattr(document, "entry_points", lambda group: [Point])
    mapped = mapper('[judgments]\nfunction = "f"')
    assert mapped(Record(b"2")) == [b'{"n":0}', b'{"n":1}']
    assert mapped(Record(b"0")) == LeftOut("the function returned no message", None)
    assert mapped(Record(b"x")).detail.startswith("the function raised ValueError(")
    assert mapped(Record(b"1001")).reason == "limit"
