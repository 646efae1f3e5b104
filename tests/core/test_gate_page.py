"""The statements of the page of the gate are true."""

import ast
import re
from pathlib import Path

from evaluator.core.learning.names import GATES
from evaluator.core.promotion.gate import PRESETS, GateRules
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights

PAGE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text("utf-8")


def test_the_example_has_the_documented_results():
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names, n_checked = {}, 0
    for statement in ast.parse(block).body:
        code = ast.get_source_segment(block, statement)
        _, _, promised = block.splitlines()[statement.end_lineno - 1].partition("  # ")
        if isinstance(statement, ast.Expr):
            assert eval(code, names) == ast.literal_eval(promised)
            n_checked += 1
        else:
            exec(code, names)
    assert n_checked == 2


def test_documented_defaults_equal_those_of_the_code():
    assert tuple(PRESETS) == GATES
    presets = [GateRules("m", **PRESETS[name]) for name in ("standard", "cautious", "quick")]
    for name in ("alpha", "block_ms", "min_traces", "min_age_ms", "max_age_ms", "cool_down_ms"):
        (row,) = re.findall(rf"^\| `{name}` \|(.*)", PAGE, re.MULTILINE)
        for rules, cell in zip(presets, row.split("|"), strict=False):
            assert float(cell.split()[0].replace(",", "")) == getattr(rules, name)
    assert (SourceRule().weight, SourceRule().max_judgments, SourceRule().max_share) == (1, None, 1)
    assert SourceWeights({}).others.weight == 0
