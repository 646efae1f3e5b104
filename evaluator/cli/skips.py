"""`--skip`: records that cannot be read, and are not."""

import argparse
import re
from collections import defaultdict
from typing import Final

from evaluator.cli.wiring import UsageError, topic_names
from evaluator.config import Settings
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.types.skips import OffsetRange, merged
from evaluator.ports import Partition

MAX_OFFSET: Final = MAX_TIMESTAMP_MS
_FORM: Final = re.compile(r"(.+)-([0-9]{1,9}):([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


def add_skip_to(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="TOPIC-PARTITION:OFFSET",
        help="do not read this record, or with OFFSET-OFFSET these records, which cannot be read; "
        "may be repeated",
    )


def skips_of(asked: argparse.Namespace, settings: Settings) -> dict[Partition, list[OffsetRange]]:
    """The offsets to skip, by partition. Raises UsageError."""
    logs = {name: log for log, name in topic_names(settings).items()}
    found: dict[Partition, list[OffsetRange]] = defaultdict(list)
    for text in asked.skip:
        match = _FORM.fullmatch(text)
        first, last = (0, -1) if match is None else (int(match[3]), int(match[4] or match[3]))
        if match is None or not first <= last <= MAX_OFFSET:
            raise UsageError(
                f"--skip {text[:80]!r} is not TOPIC-PARTITION:OFFSET, e.g. rankings-0:1234, or "
                "rankings-0:1234-1240 for all from the first to the last offset."
            )
        if match[1] not in logs:
            raise UsageError(
                f"--skip {text[:80]!r} names no input. Topics of the inputs are "
                f"{' and '.join(logs)}."
            )
        found[logs[match[1]], int(match[2])].append((first, last))
    return {partition: merged(ranges) for partition, ranges in found.items()}
