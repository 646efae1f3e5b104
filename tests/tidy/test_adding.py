"""Additions as described in CONTRIBUTING.md: toys in a copy of the repository, and its tests.

Each toy edits files that its section names, and no others. That the tests of the copy pass with
all toys shows that no other file needed an edit.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.wire.native import library as wire_library
from tests.tidy.tree import ROOT, files

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("additions")]  # one copy, programs in it

HELD_BY = [
    *("tests/core/test_measures.py", "tests/core/test_law.py", "tests/core/test_losses.py"),
    *("tests/config", "tests/tidy/test_docs.py"),
    *("tests/tidy/test_glossary.py", "tests/tidy/test_words.py"),
]


class Copy:
    """A copy of the repository under git, which reports its changed files."""

    def __init__(self, root):
        self.root = root
        built = [Path(wire_library.PATH)]
        for path in [*files(), *filter(Path.exists, built)]:
            place = root / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
        self._git("init", "--quiet")
        self.keep()

    def keep(self):
        """Adds all changes so far to the index."""
        self._git("add", "--all")

    def _git(self, *arguments):
        command = ["git", "-C", self.root, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def changed(self):
        return {
            *self._git("diff", "--name-only").split(),
            *self._git("ls-files", "--others", "--exclude-standard").split(),
        }

    def named(self, heading):
        """Files and folders in a section of CONTRIBUTING.md: in backticks, or linked."""
        page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
        section = re.split(r"\n## ", page.split(f"\n## {heading}\n")[1])[0]
        return {*re.findall(r"`([\w./]+)`", section), *re.findall(r"\]\(([\w./]+)\)", section)}

    def assert_only_named(self, heading, *, generated=()):
        places = {name for name in self.named(heading) if "/" in name or name.endswith(".md")}
        others = [
            name
            for name in self.changed() - set(generated)
            if not any(f"{name}/".startswith(f"{place.rstrip('/')}/") for place in places)
        ]
        assert not others

    def append(self, name, text):
        path = self.root / name
        path.write_text((path.read_text("utf-8") if path.exists() else "") + text, "utf-8")

    def insert(self, name, before, text):
        """One piece of text before the only place of another."""
        path = self.root / name
        parts = path.read_text("utf-8").split(before)
        assert len(parts) == 2, f"{name} has {before!r} {len(parts) - 1} times"
        path.write_text(f"{parts[0]}{text}{before}{parts[1]}", "utf-8")

    def run(self, *arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},  # before the installed package
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
        return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("additions") / "tree")


@pytest.fixture
def copy(tree):
    """The copy, in which the changes of this test are those since the one before."""
    yield tree
    tree.keep()


MEASURE = '''

def squared_reciprocal_rank(lists: JudgedLists, terms: Terms) -> FloatArray:
    """1 / rank^2 of the first relevant candidate within the cutoff, else 0: `[n_lists]`."""
    first = lists.first_relevant
    values: FloatArray = np.where(first <= terms.cutoff, 1.0 / (first * first), 0.0)
    return values
'''
ORACLE = """def squared_reciprocal(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    rank = first_relevant_rank(ranked, grades)
    return 1 / (rank * rank) if 0 < rank <= cutoff else 0.0


"""


def test_a_measure_changes_exactly_the_files_that_its_section_names(copy, tmp_path):
    copy.append("evaluator/core/measures/binary.py", MEASURE)
    registered = '    "mrr_squared": MeasureKind(binary.squared_reciprocal_rank, "optional"),\n'
    copy.insert("evaluator/core/measures/registry.py", '    "ndcg": _averaged(', registered)
    copy.insert("tests/oracle/measures.py", "def dcg(", ORACLE)
    copy.insert(
        "tests/oracle/measures.py",
        '    "ndcg": ndcg,\n',
        '    "mrr_squared": squared_reciprocal,\n',
    )
    copy.insert(
        "tests/oracle/measures.py",
        '    "top1", "top3", "hit@1",',
        '    "mrr_squared", "mrr_squared@2",\n',
    )
    row = "| `mrr_squared`, `mrr_squared@k` | `mrr` with i^2 in place of i | a toy |\n"
    copy.insert("docs/measures.md", "| `ndcg`, `ndcg@k` | DCG /", row)
    copy.append("CHANGELOG.md", "- Measure `mrr_squared`.\n")
    copy.assert_only_named("How to add a measure")

    about = {"schema_version": 1, "trace_id": "t", "node_id": "n"}
    ranking = {**about, "timestamp_ms": 1_000, "candidate_ids": ["a", "b"], "scores": [2, 1]}
    judgment = {**about, "timestamp_ms": 2_000, "grades": {"b": 1}}
    for name, message in (("rankings", ranking), ("judgments", judgment)):
        (tmp_path / f"{name}.ndjson").write_text(json.dumps(message) + "\n")
    copy.run(
        *("-m", "evaluator", "replay", f"--source=file://{tmp_path}", f"--out={tmp_path / 'out'}"),
        *("--set", "measures=mrr_squared,mrr_squared@1"),
    )
    [line] = (tmp_path / "out/evaluations.ndjson").read_text().splitlines()
    [metrics] = [value for value in json.loads(line).values() if "mrr_squared" in str(value)]
    assert '"mrr_squared": 0.25, "mrr_squared@1": 0.0' in json.dumps(metrics)


LOSS = '''

def pointwise_halved(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Half of `pointwise_logistic`, with its arguments."""
    once = pointwise_logistic(scores, grades, mask)
    return Losses(0.5 * once.values, 0.5 * once.gradients)
'''


def test_a_loss_changes_exactly_the_files_that_its_section_names(copy):
    module = "evaluator/core/learning/losses.py"
    copy.insert(module, "\ndef _mean(", LOSS)
    copy.insert(module, '    "pointwise_logistic": ', '    "pointwise_halved": pointwise_halved,\n')
    copy.insert(
        "docs/learning.md",
        "| `pointwise_squared` |",
        "| `pointwise_halved` | half of `pointwise_logistic` | half of it |\n",
    )
    generate(copy)
    copy.assert_only_named("How to add a loss", generated=["docs/settings.md"])


def test_a_setting_changes_exactly_the_files_that_its_section_names(copy):
    field = '    log_toys: int = _log(3, integer(1), "number of toys in a log line")\n'
    copy.insert("evaluator/config/settings.py", "    log_level: str = _log(", field)
    generate(copy)
    assert "docs/settings.md" in copy.changed()
    copy.assert_only_named("How to add a setting", generated=["docs/settings.md"])
    loaded = "from evaluator.config import Settings; print(Settings().log_toys)"
    assert copy.run("-c", loaded) == "3\n"


def test_the_tests_of_the_copy_pass_with_all_additions(copy):
    """The tests of the additions, and those of names, words and pages."""
    copy.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *HELD_BY)
    assert not copy.changed()


def generate(copy):
    """The commands of `make generate`, without its environment."""
    for line in re.findall(r"^\t\$\(BIN\)/python (.*)$", generating(), re.MULTILINE):
        copy.run(*line.split())


def generating():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return re.split(r"\n\n", makefile.split("\ngenerate:")[1])[0]
