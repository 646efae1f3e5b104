"""Files of a replay as columns: read once, without guesses; errors are one line."""

import gzip
import json
import math

import numpy as np
import pytest

from evaluator.comparison import folder as module
from evaluator.comparison.folder import read_folder
from evaluator.ports import SourceUnusable
from tests.comparison.rows import put, row


def read(folder, **options):
    wanted = {"rankers": None, "measures": None, "with_grades": True, "on_read": len, **options}
    return read_folder(folder, wanted.pop("kind", "running"), **wanted)


def test_every_ranker_and_measure_is_a_column_with_nan_where_a_query_has_no_value(tmp_path):
    rows = [
        row("t", {"served": {"mrr": 0.5}}),
        row("u", {}),
        row("v", {"served": {"mrr": 0.25, "map": 0.75}, "bm25": {"mrr": 1}}),
        row("w", {"served": {"mrr": 0.125}}),
    ]
    found = read(put(tmp_path / "out", rows))
    assert (found.rankers, found.measures) == (("served", "bm25"), ("mrr", "map"))
    columns = {name: column.tolist() for name, column in found.values.items()}
    nan = math.nan
    np.testing.assert_equal(
        columns,
        {
            ("served", "mrr"): [0.5, nan, 0.25, 0.125],
            ("served", "map"): [nan, nan, 0.75, nan],
            ("bm25", "mrr"): [nan, nan, 1.0, nan],
        },
    )


def test_only_requested_values_are_kept_but_all_names_are_known(tmp_path):
    both = {"mrr": 0.5, "map": 0.25}
    folder = put(tmp_path / "out", [row("t", {"served": both, "bm25": both})])
    found = read(folder, rankers={"bm25"}, measures={"map"})
    assert list(found.values) == [("bm25", "map")]
    assert (found.rankers, found.measures) == (("served", "bm25"), ("mrr", "map"))


def test_all_bytes_are_reported_and_rows_are_found_again(tmp_path):
    rows = [row(f"t-{i}", {"served": i / 8}, query="x" * i) for i in range(8)]
    folder = put(tmp_path / "out", rows)
    read_sizes = []
    found = read(folder, on_read=lambda block: read_sizes.append(len(block)))
    assert found.values["served", "mrr"].tolist() == [i / 8 for i in range(8)]
    assert [found.shown(i).query for i in range(8)] == ["x" * i for i in range(8)]
    assert sum(read_sizes) == (folder / "evaluations.ndjson").stat().st_size
    assert found.intact


def test_the_queries_of_a_trace_share_its_hash_and_no_query_shares_a_key(tmp_path):
    value = {"served": 0.5}
    rows = [
        row("t", value),
        row("t", value, node_id="m"),
        row("t", value, event_time_ms=2_000),  # the key used again, after its time
        row("u", value),
        row("tn", value, node_id=""),
    ]
    found = read(put(tmp_path / "out", rows))
    assert len(set(found.traces[:3].tolist())) == 1
    assert len(set(found.traces.tolist())) == 3
    assert len(set(map(tuple, found.keys.tolist()))) == 5


def test_grades_are_equal_in_any_order_and_as_integers(tmp_path):
    value = {"served": 0.5}
    grades = [{"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, {"a": 2, "b": 1}, {"a": 1}]
    rows = [row(f"t-{i}", value, grades=given) for i, given in enumerate(grades)]
    hashes = read(put(tmp_path / "out", rows)).grades.tolist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_settled_values_are_in_their_own_file(tmp_path):
    rows = [row("t", {"served": 0.5}), row("u", {}, grades={})]
    folder = put(tmp_path / "out", rows, name="settled.ndjson")
    assert len(read(folder, kind="settled")) == 2
    with pytest.raises(SourceUnusable, match=r"no evaluations\.ndjson"):
        read(folder)


def test_a_missing_manifest_is_none(tmp_path):
    folder = put(tmp_path / "out", [row("t", {"served": 0.5})])
    (folder / "manifest.json").unlink()
    found = read(folder)
    assert (found.manifest, found.intact) == (None, True)


@pytest.mark.parametrize("change", ["appended", "replaced", "not in the manifest"])
def test_a_file_that_differs_from_the_manifest_is_detected(tmp_path, change):
    lines = [row("t", {"served": 0.5}), row("u", {"served": 0.5})]
    folder = put(tmp_path / "out", lines)
    path = folder / "evaluations.ndjson"
    if change == "appended":
        path.write_bytes(path.read_bytes() + row("v", {}) + b"\n")
    elif change == "replaced":
        path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    else:
        put(folder, lines, files={})
    assert not read(folder).intact


VALID_ROW = row("t", {"served": 0.5})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "line 2 is not a row"),
        (b"{", "line 2 is not a row"),
        (b"\xff" + VALID_ROW, "line 2 is not a row"),
        (b"[" * 200_000, "line 2 is not a row"),
        (VALID_ROW.replace(b'"model": "m"', b'"model": ' + b"[" * 200_000), "line 2 is not a row"),
        (b"[1, 2]", "Expected `object`, got `array`"),
        (b'{"trace_id": "t"}', "missing required field `node_id`"),
        (VALID_ROW.replace(b"1000", b'"noon"'), "event_time_ms"),
        (VALID_ROW.replace(b"0.5", b'"high"'), "Expected `float`"),
        (VALID_ROW.replace(b"0.5", b"NaN"), "line 2 is not a row"),
        (VALID_ROW.replace(b"0.5", b"1e999"), "line 2 is not a row"),
        (VALID_ROW.replace(b"0.5", b"1e30"), "1e+30 is not a value of mrr"),
        (VALID_ROW.replace(b'"a": 1', b'"a": "good"'), "Expected `float`"),
        (VALID_ROW, "its query is on line 1 too"),
    ],
)
def test_an_invalid_line_is_named_with_its_number(tmp_path, line, words):
    folder = put(tmp_path / "out", [VALID_ROW, line, row("v", {"served": 0.5})])
    with pytest.raises(SourceUnusable) as refusal:
        read(folder)
    assert words in str(refusal.value)
    assert str(folder / "evaluations.ndjson") in str(refusal.value)
    assert "line 2 " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_first_of_several_repeated_queries_is_named(tmp_path):
    value = {"served": 0.5}
    lines = [row(trace, value) for trace in ("t", "u", "v", "u", "t", "u")]
    with pytest.raises(SourceUnusable, match=r"line 4 .* is on line 2 too"):
        read(put(tmp_path / "out", lines))


def test_a_file_that_ends_within_a_line_is_incomplete(tmp_path):
    folder = put(tmp_path / "out", [VALID_ROW, row("u", {"served": 0.5})])
    path = folder / "evaluations.ndjson"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceUnusable, match="line 2, the last, is cut off"):
        read(folder)


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1 << 20)
    folder = put(tmp_path / "out", [VALID_ROW])
    with (folder / "evaluations.ndjson").open("ab") as file:
        file.truncate(1 << 30)  # a hole: zeros that take no room
    read_sizes = []
    with pytest.raises(SourceUnusable, match="line 2 is longer than 1 MiB"):
        read(folder, on_read=read_sizes.append)
    assert len(read_sizes) < 2_000


def test_a_path_that_is_not_a_result_directory_is_refused(tmp_path):
    with pytest.raises(SourceUnusable, match="not a directory"):
        read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceUnusable, match=r"has no evaluations\.ndjson"):
        read(tmp_path / "empty")


def test_a_compressed_file_is_refused_with_the_remedy(tmp_path):
    folder = put(tmp_path / "out", [VALID_ROW])
    plain = folder / "evaluations.ndjson"
    plain.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(SourceUnusable, match=r"evaluations\.ndjson has gzip data.* Decompress it"):
        read(folder)
    plain.rename(folder / "evaluations.ndjson.gz")
    with pytest.raises(SourceUnusable, match=r"has evaluations\.ndjson\.gz, .* Decompress it"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not the manifest of a replay"),
        (200_000 * "[", "is not the manifest of a replay"),
        ("\udcff", "is not the manifest of a replay"),
        ('{"format": 1}', "missing required field"),
        (json.dumps([]), "is not the manifest of a replay"),
    ],
)
def test_an_invalid_manifest_is_refused(tmp_path, text, words):
    folder = put(tmp_path / "out", [VALID_ROW])
    (folder / "manifest.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(SourceUnusable, match=words):
        read(folder)


def test_a_manifest_of_another_format_is_refused(tmp_path):
    with pytest.raises(SourceUnusable, match="format 3; this version reads 2"):
        read(put(tmp_path / "out", [VALID_ROW], format=3))


def test_a_file_that_changes_while_it_is_read_is_detected(tmp_path):
    found = read(put(tmp_path / "out", [VALID_ROW]))
    found.path.write_bytes(b"gone")
    with pytest.raises(SourceUnusable, match="has changed while it was read"):
        found.shown(0)
