"""`make chaos`: rounds of faults until the wanted number or the time limit is reached."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.chaos.round import Report, Round

ROUND_FAULTS = 25
"""More than the number of kinds, so every round has each kind. Each round has its own broker."""


def main() -> int:
    """0 if there was no difference."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, help="of the first round; the next has the next one")
    parser.add_argument("--minutes", type=float, default=60.0, help="no fault comes later")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began = time.monotonic()
    until = began + 60 * options.minutes
    faults = records = differences = 0
    kinds: Counter[str] = Counter()
    while faults < options.faults and time.monotonic() < until:
        with (
            tempfile.TemporaryDirectory(prefix="chaos-") as home,
            Broker(Path(home) / "broker") as broker,
        ):
            report = Round(broker, Path(home) / "round", f"c{seed}-", seed=seed).run(
                min(ROUND_FAULTS, options.faults - faults), until=until
            )
        faults += report.n_faults
        records += report.n_records
        kinds.update(report.kinds)
        differences += len(report.differences)
        print_progress(
            report, time.monotonic() - began, faults, options.faults, records, differences
        )
        seed += 1
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(f"{faults} faults of {len(kinds)} kinds, {records} records, {differences} differences")
    return 1 if differences else 0


def print_progress(
    report: Report, seconds: float, faults: int, wanted: int, records: int, differences: int
) -> None:
    """Prints the progress, and the details of a round with differences."""
    if report.differences:
        print(report, file=sys.stderr)
    print(
        f"{seconds:6.0f} s  seed {report.seed}: faults {faults}/{wanted}, records {records:,}, "
        f"differences {differences}; outputs {report.n_outputs:,}, scrapes {report.n_scrapes}, "
        f"{report.starts}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
