"""The page on upgrading has exactly the formats and the settings of the code."""

import ast
import re
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from evaluator.cli import leader
from evaluator.cli.leader import watch_fingerprint
from evaluator.cli.wiring import fingerprint_of
from evaluator.config import Settings
from evaluator.config.kinds import PATH
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from tests.tidy.tree import ROOT, modules, name_of, parsed, table_below

pytestmark = pytest.mark.xdist_group("modules")  # parsed once

PAGE = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
BEFORE = Settings(learning="propose", segments=("s",), source_weights=(("click", 1.0),))
OTHERS = {
    "learning": "off",
    "measures": ("ndcg@10", "mrr"),
    "grades_merge_by_source": (("click", "max"),),
    "segments": ("other",),
    "segment_levels": (("s", "de"),),
    "segment_measures": ("mrr",),
    "initial_weights": (1.0,),
    "gate_measure": "mrr",
    "gate_guardrails": (("mrr", 0.01),),
    "clip_norm": 1.0,
    "gate_alpha": 0.5,
    "source_weights": (("click", 0.5),),
    "implicit_sources": ("click",),
    "source_max_judgments": (("click", 5),),
    "source_max_share": (("click", 0.5),),
    "alarm_measures": ("mrr",),
    "alarm_rankers": ("served", "b"),
    "alarm_levels": (("s", "de"),),
    "alarm_pairs": (("a", "b"),),
    "alarm_objectives": (("mrr", 0.5),),
    "histogram_measures": ("mrr",),
    "mapping": str(ROOT / "evaluator" / "mapping" / "presets" / "ubi.toml"),
}
"""Values that differ from `BEFORE`, where they cannot be made from the accepted ones."""


def other(name):
    """The settings with another value of one."""
    value, accepts = getattr(BEFORE, name), SPECS[name].kind.accepts
    if name in OTHERS:
        value = OTHERS[name]
    elif isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value += 1
    elif value is None and accepts.startswith("an integer"):
        value = 10_000_000
    elif isinstance(value, float):
        value = value / 2 + 1
    elif " or " in accepts and value in accepts.split(" or "):
        value = next(each for each in accepts.split(" or ") if each != value)
    elif not value and SPECS[name].example and SPECS[name].kind is not PATH:
        value = SPECS[name].kind.read(SPECS[name].example)
    else:
        value = "other"
    return replace(BEFORE, **{name: value})


def learning_fingerprint(settings):
    if not settings.learns:
        return None
    return leader.record_writer_of(
        settings, leader.rules_of(settings, measure_set(settings))
    ).fingerprint


OF_ACCESS = {"HTTP", "Kafka security", "Schema registry", "Log"}
"""Groups of settings that belong together in pairs, and that results cannot depend on."""
HASHES = {
    "workers": fingerprint_of,
    "learning": learning_fingerprint,
    "alarms": watch_fingerprint,
}


@pytest.mark.parametrize("part", HASHES)
def test_the_settings_that_reset_a_part_are_listed(part, monkeypatch):
    monkeypatch.setattr(leader, "embedder_of", lambda of: SimpleNamespace(name=of.embedder))
    hash_of = HASHES[part]
    names = [name for name, spec in SPECS.items() if spec.group not in OF_ACCESS]
    changing = {name for name in names if hash_of(other(name)) != hash_of(BEFORE)}
    rows = {row[0]: row[1] for row in table_below(PAGE, "## Settings")}
    assert set(re.findall(r"`(\w+)`", rows[part])) == changing


def test_every_format_is_listed_with_its_number():
    constant = re.compile(r"_?([A-Z_]*_)?FORMAT|SEMANTICS")
    found = set()
    for module in modules():
        for node in parsed(module).body:
            names = [node.target] if isinstance(node, ast.AnnAssign) else []
            names += node.targets if isinstance(node, ast.Assign) else []
            named = any(isinstance(one, ast.Name) and constant.fullmatch(one.id) for one in names)
            if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
                found.add((name_of(module).removeprefix("evaluator/"), node.value.value))
    rows = table_below(PAGE, "## Formats")
    assert {(module.strip("`"), int(number)) for _, number, module, _ in rows} == found
