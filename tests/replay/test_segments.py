"""Sums by level of a replay of several partitions, against the oracle."""

import json

import pytest

from evaluator.core.types.records import OTHER
from tests.oracle.rules import Settings
from tests.oracle.totals import comparable, totals_of_files
from tests.replay.running import replayed

N_LEVELS = 900
"""Of each of two partitions: together more than are kept."""


def write_logs(directory):
    directory.mkdir()
    for task in range(2):
        rankings, judgments = [], []
        for number in range(N_LEVELS):
            common = {"schema_version": 1, "trace_id": f"t-{task}-{number}", "node_id": "n"}
            common["timestamp_ms"] = 1_000 + number
            segments = {"device": "tv", "locale": f"l-{number + task * N_LEVELS // 2}"}
            ranking = {**common, "candidate_ids": ["a", "b"], "scores": [2, 1], "model": "m"}
            rankings.append({**ranking, "segments": segments if number % 5 else {}})
            judgments.append({**common, "grades": {"ab"[number % 2]: 1}})
        for log, rows in (("rankings", rankings), ("judgments", judgments)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (directory / f"{log}-{task}.ndjson").write_text(text, "utf-8")


@pytest.mark.slow
async def test_sums_by_level_over_all_partitions_equal_the_oracle(tmp_path):
    write_logs(tmp_path / "logs")
    chosen = {
        "measures": ("mrr", "top1"),
        "segments": ("locale", "device"),
        "segment_levels": (("locale", "l-1"), ("locale", "l-1349")),
        "segment_measures": ("mrr",),
    }
    files = await replayed(tmp_path / "logs", tmp_path / "out", settings=chosen)
    totals = json.loads(files["totals.json"])
    expected = totals_of_files(tmp_path / "logs", Settings(**chosen))
    assert comparable(totals)["segments"] == comparable(expected)["segments"]
    of_locale = {row["level"] for row in totals["segments"] if row["segment"] == "locale"}
    assert {"l-1", "l-1349", OTHER} <= of_locale
    assert len(of_locale) < N_LEVELS * 3 // 2
    assert {row["measure"] for row in totals["segments"]} == {"mrr"}
    assert not [row for row in totals["segments"] if row["queries"] == 0]


async def test_totals_have_no_member_segments_without_segments(tmp_path):
    write_logs(tmp_path / "logs")
    files = await replayed(tmp_path / "logs", tmp_path / "out")
    assert "segments" not in json.loads(files["totals.json"])
