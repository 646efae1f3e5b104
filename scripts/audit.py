"""Looks up known vulnerabilities of the packages of requirements/run.txt: `make audit`.

pip-audit exits with 0 even if the index has no data about a package. Here that is a failure
of its own: exit code 1 means vulnerabilities, 2 that a package could not be looked up.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

LOCK = Path(__file__).parent.parent / "requirements" / "run.txt"


class Verdict(NamedTuple):
    """The text to print, and the exit code."""

    text: str
    code: int


def verdict(report: dict[str, Any]) -> Verdict:
    """The verdict on a report of pip-audit in JSON."""
    packages = report["dependencies"]
    unknown = [package["name"] for package in packages if "vulns" not in package]
    weak = [package for package in packages if package.get("vulns")]
    lines = [
        f"{package['name']} {package['version']}: {weakness['id']}, fixed in "
        f"{', '.join(weakness['fix_versions']) or 'no version yet'}"
        for package in weak
        for weakness in package["vulns"]
    ]
    if unknown or not packages:
        lines.append(
            f"audit: {len(unknown)} of {len(packages)} packages could not be looked up, so their "
            "state is unknown. The index must be reachable with its JSON API (a mirror may lack "
            f"it): {', '.join(unknown)}"
        )
    else:
        lines.append(f"audit: {len(packages)} packages looked up, {len(weak)} with vulnerabilities")
    return Verdict("\n".join(lines), 1 if weak else 2 if unknown or not packages else 0)


def main() -> int:
    """Runs pip-audit on the lock as it is, without resolving or installing anything."""
    program = Path(sys.executable).with_name("pip-audit")
    options = ["--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    command = [str(program), f"--requirement={LOCK}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        tail = " ".join(done.stderr.split())[-500:]
        print(f"audit: the index could not be queried: {tail}", file=sys.stderr)
        return 2
    text, code = verdict(report)
    print(text, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
