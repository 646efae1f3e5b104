"""The audit of the packages and their bill of materials: `make audit` and `make sbom`."""

import json
from urllib.parse import urlsplit

import pytest

from scripts.audit import verdict
from tests.deploy.programs import run_program
from tests.tidy.test_project import pins
from tests.tidy.tree import ROOT

SOUND = {"name": "sound", "version": "1", "vulns": []}
VULNERABLE = {"name": "weak", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([SOUND], 0, "1 packages looked up, 0 with vulnerabilities"),
        ([SOUND, VULNERABLE], 1, "weak 2: CVE-1, fixed in 3"),
        ([SOUND, UNKNOWN], 2, "1 of 2 packages could not be looked up"),
        ([VULNERABLE, UNKNOWN], 1, "could not be looked up"),
        ([], 2, "could not be looked up"),
    ],
)
def test_an_unknown_package_is_not_reported_as_sound(packages, code, words):
    text, found = verdict({"dependencies": packages})
    assert found == code
    assert words in text


@pytest.mark.slow
def test_the_sbom_has_every_pinned_package_with_its_hashes(tmp_path):
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n\t\t", "")
    line = next(line for line in makefile.splitlines() if "cyclonedx-py" in line)
    file = tmp_path / "sbom.json"
    words = line.replace("dist/sbom.cdx.json", str(file)).split()[1:]
    done = run_program("cyclonedx-py", *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    bill = json.loads(file.read_text("utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "evaluator"
    found = {part["name"]: {part["version"]} for part in bill["components"]}
    assert found == pins("run.txt")
    for part in bill["components"]:
        assert any(reference.get("hashes") for reference in part["externalReferences"])
        assert all(urlsplit(reference["url"]).netloc for reference in part["externalReferences"])
