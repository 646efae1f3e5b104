"""Errors of a mapping file have its line and the accepted values."""

from importlib.resources import files

import pytest

from evaluator.mapping import document
from evaluator.mapping.document import MappingRefused, read_document, read_mapping

RANKINGS = """\
[rankings]
trace_id = "t"
node_id = "n"
[rankings.rows]
each = "r"
candidate_id = "c"
"""
JUDGMENTS = """\
[judgments]
trace_id = "t"
node_id = "n"
candidate_id = "c"
grade = "g"
"""


def refusal(text):
    with pytest.raises(MappingRefused) as error:
        read_document(text, "m.toml")
    return str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[rankings]", "[ranking]", "m.toml:1: ranking is not known here. Accepted: rankings (nearest), judgments."),
        ('node_id = "n"', "", 'm.toml:1: rankings has no node_id, which is required. Accepted: node_id = "path".'),
        ('node_id = "n"', 'node_id = "a..b"', "m.toml:3: rankings.node_id : 'a..b' is not a path such as"),
        ('node_id = "n"', 'node_id = "[0].a"', "is not a path such as data.items[0].id"),
        ('node_id = "n"', 'node_id = "header:"', "the name of the header is missing, e.g. header:x-session"),
        ('node_id = "n"', "node_id = 7", "m.toml:3: rankings.node_id is 7. Accepted: a path such as"),
        ('node_id = "n"', "node_id = []", "m.toml:3: rankings.node_id has no path. Accepted: a path, a list of paths"),
        ('node_id = "n"', "node_id = { const = 7 }", "m.toml:3: rankings.node_id has 7. Accepted: text as its value."),
        ('node_id = "n"', 'node_id = { const = "a", path = "b" }', "a const stands alone"),
        ('node_id = "n"', 'node_id = { path = "b", unit = "s" }', "has unit, which a member of this kind does not take. Accepted: path, const, table."),
        ('node_id = "n"', 'node_id = { path = "b", table = {} }', "has the table {}. Accepted: { value = replacement, ... }."),
        ('node_id = "n"', 'node_id = { path = "b", table = { a = 1 } }', "rankings.node_id has 1. Accepted: text as its value."),
        ('node_id = "n"', 'node_id = "n"\ntimestamp_ms = { path = "at", unit = "h" }', 'm.toml:4: rankings.timestamp_ms has the unit "h". Accepted: ms, us, ns, s, iso.'),
        ('node_id = "n"', 'node_id = "n"\nformat = "xml"', 'm.toml:4: rankings.format is "xml". Accepted: json, otlp, avro, protobuf.'),
        ('node_id = "n"', 'node_id = "n"\nenvelope = "saop"', 'm.toml:4: rankings.envelope is "saop". Accepted: none, cloudevents, debezium.'),
        ('node_id = "n"', 'node_id = "n"\ntopic = ""', 'm.toml:4: rankings.topic is "". Accepted: a text that is not empty.'),
        ('node_id = "n"', 'node_id = "n"\nwhere = { a = "b" }', 'm.toml:4: rankings.where has "b". Accepted: { path = [values] }.'),
        ('node_id = "n"', 'node_id = "n"\nwhere = { a = [[]] }', "has the value []. Accepted: texts, numbers, true, false."),
        ('node_id = "n"', 'node_id = "n"\npresent = "a"', 'm.toml:4: rankings.present is "a". Accepted: ["path", ["path", "or path"], ...].'),
        ('node_id = "n"', 'node_id = "n"\npresent = [[]]', "m.toml:4: rankings.present has an empty list."),
        ('node_id = "n"', 'node_id = "n"\npresent = [["a", "b..c"]]', "m.toml:4: rankings.present : 'b..c' is not a path such as"),
        ('node_id = "n"', 'node_id = "n"\nformat = "otlp"\nenvelope = "debezium"', "m.toml:5: rankings.envelope is beside format = otlp. Accepted: none."),
        ('node_id = "n"', 'node_id = "n"\nmodle = "m"', "m.toml:4: rankings.modle is not known here. Accepted: model (nearest), "),
        ('node_id = "n"', 'node_id = "n"\nsegments = "m"', 'rankings.segments is "m". Accepted: { name = "path", ... }.'),
        ('candidate_id = "c"', "", "m.toml:1: rankings has no candidate_id, which is required"),
        ('candidate_id = "c"', 'candidate_id = "key:"', "m.toml:6: rankings.rows.candidate_id is in a row, which has no key or headers"),
        ('candidate_id = "c"', 'candidate_id = { path = "c", table = { a = "b" } }', "has a table, which would leave out rows of a ranking"),
        ('candidate_id = "c"', 'candidate_id = "c"\nrank = { path = "p", add = 0.5 }', "m.toml:7: rankings.rows.rank adds 0.5. Accepted: an integer."),
        ('candidate_id = "c"', 'candidate_id = "c"\nfeatures = { a = 1 }', "m.toml:7: rankings.rows.features.a is 1. Accepted: a path"),
        ('candidate_id = "c"', 'candidate_id = "c"\nfeatures.a = 1', "m.toml:7: rankings.rows.features.a is 1. Accepted: a path"),
        ('each = "r"', 'each = "key:"', "m.toml:5: rankings.rows.each is not in the value"),
        ('each = "r"', "score = { const = 1 }", "m.toml:5: rankings.rows.score is one of parallel arrays. Accepted: one path; or each, the array of the rows."),
        ('node_id = "n"', 'node_id = "n"\nexposed_top = 1.5', "m.toml:4: rankings.exposed_top is 1.5. Accepted: a path such as"),
        ('node_id = "n"', 'node_id = "n"\nexposed_top = true', "m.toml:4: rankings.exposed_top is true. Accepted: a path such as"),
        ("[rankings.rows]", "[rankings.row]", "m.toml:4: rankings.row is not known here. Accepted: rows (nearest), "),
        (RANKINGS, "", "m.toml: is empty. Accepted: a table [rankings], [judgments], or both."),
        (RANKINGS, "rankings = 1", "m.toml:1: rankings is 1, not a table. Accepted: [rankings] with topic, format"),
        (RANKINGS, "[rankings", "m.toml is not TOML: "),
        (RANKINGS, '[rankings]\ntrace_id="t"\nnode_id="n"', "m.toml:1: rankings has no rows. Accepted: a table [rankings.rows] with candidate_id."),
        (RANKINGS, '[rankings]\nfunction = "no_such"', 'm.toml:2: rankings.function "no_such" names 0 functions of the group evaluator.mappings. Accepted: none is installed.'),
        (RANKINGS, '[rankings]\nfunction = "no_such"\nmodel = "m"', "m.toml:3: rankings.model is beside function. Accepted: topic and function."),
    ],
)  # fmt: skip
def test_an_error_has_its_line_and_the_accepted_values(old, new, expected):
    assert old in RANKINGS
    assert expected in refusal(RANKINGS.replace(old, new))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JUDGMENTS.replace('grade = "g"', ""), "judgments has no grade, which is required"),
        (JUDGMENTS + '[judgments.rows]\neach="r"\ncandidate_id="c"', "m.toml:8: judgments.rows.candidate_id is also beside [judgments]"),
        ('[judgments]\ntrace_id="t"\n[judgments.rows]\nnode_id="n"\ncandidate_id="c"\ngrade="g"', "m.toml:3: judgments.rows gives several messages. Accepted: each, the array of the rows."),
    ],
)  # fmt: skip
def test_contradicting_or_missing_members_are_refused(text, expected):
    assert expected in refusal(text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(MappingRefused, match=r"No such file.*mapping presets"):
        read_mapping(tmp_path / "none.toml")


def test_the_hash_covers_the_meaning_and_not_topic_comments_or_layout():
    plain = read_document(RANKINGS, "a").hash
    assert read_document('# text\n[rankings]\ntopic = "x"\n' + RANKINGS[11:], "b").hash == plain
    assert read_document(RANKINGS.replace('"c"', '"d"'), "a").hash != plain


def test_a_function_of_a_package_is_loaded_and_its_version_is_part_of_the_hash(monkeypatch):
    class Point:
        name = "acme"

        class dist:  # noqa: N801
            name, version = "acme-mappings", "1.0"

        @staticmethod
        def load():
            return list

    monkeypatch.setattr(document, "entry_points", lambda group: [Point])
    text = '[judgments]\ntopic = "x"\nfunction = "acme"'
    first = read_document(text, "m")
    assert first.logs["judgments"].function is list
    assert first.logs["judgments"].several
    monkeypatch.setattr(Point.dist, "version", "1.1")
    assert read_document(text, "m").hash != first.hash


def test_presets_are_valid():
    presets = list((files("evaluator.mapping") / "presets").iterdir())
    assert {each.name for each in presets} == {"clicks.toml", "otel-genai.toml", "ubi.toml"}
    for each in presets:
        assert read_document(each.read_text(), each.name).logs.keys() == {"rankings", "judgments"}
