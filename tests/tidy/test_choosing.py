"""The measures, settings and arithmetic of docs/choosing.md exist."""

import re

from evaluator.config.settings import SPECS
from evaluator.core.measures import MeasureSet
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "choosing.md").read_text("utf-8")


def test_every_measure_on_the_page_is_a_measure():
    names = set(re.findall(r"`([a-z_]+[0-9]?(?:\[[0-9.]+\])?(?:@(?:k|[0-9]+))?)`", PAGE))
    known = {name for name in names if "@" in name or name in {"top1", "mrr", "map", "abandoned"}}
    assert len(known) > 15
    MeasureSet.parse([name.replace("@k", "@5") for name in sorted(known)])


def test_every_fault_has_a_measure_a_threshold_a_cause_and_an_action():
    table = PAGE.partition(
        "| measure | threshold | likely cause | do | where to look |\n|---|---|---|---|---|\n"
    )[2]
    rows = [line.strip("|").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    assert len(rows) > 10
    for row in rows:
        assert (len(row), all(cell.strip() for cell in row)) == (5, True)
        assert re.search(r"\*past\*|\*range\*|objective", row[1])


def test_every_setting_on_the_page_is_a_setting():
    named = {*re.findall(r"`([a-z]+(?:_[a-z]+)*) = ", PAGE), "alarm_tolerance"}
    assert named - {"ndcg"} <= set(SPECS)
    assert {"alarm_objectives", "silence", "judged_only", "learning"} <= named


def test_the_number_of_traces_is_that_of_the_formula():
    (header,) = re.findall(r"^\| d \|(.*)\|$", PAGE, re.MULTILINE)
    (row,) = re.findall(r"^\| traces \|(.*)\|$", PAGE, re.MULTILINE)
    sizes = [float(cell) for cell in header.split("|")]
    traces = [int(cell.replace(",", "")) for cell in row.split("|")]
    assert traces == [round(7.84 * (0.2 / size) ** 2) for size in sizes]
    assert round((1.96 + 0.84) ** 2, 2) == 7.84


def test_exactly_the_cited_sources_are_listed():
    text, _, sources = PAGE.partition("## Sources")
    cited = {int(number) for number in re.findall(r"\[(\d+)\](?!\()", text)}
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", sources, re.MULTILINE)}
    assert cited == listed == set(range(1, 13))
