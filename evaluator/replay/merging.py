"""Merges directories of results into one: exactly, and whatever the order and the grouping.

Sums are added, sorted rows merged, and alarms evaluated once over all settled queries.
"""

import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.watched import AlarmCommand
from evaluator.core.types.tally import Tally
from evaluator.mapping.schemas import merged
from evaluator.ports import RequestRefused
from evaluator.replay.alarms import ALARM_COMMANDS, AlarmReplay
from evaluator.replay.manifest import Code
from evaluator.replay.online_learning import OnlineLearning
from evaluator.replay.results import ROWS_PER_BLOCK, ResultDirectory, SortKey
from evaluator.replay.shards import Shard, place_key
from evaluator.replay.writing import SCHEMAS, SETTLED, FileRules, Part, WrittenFiles, write_files
from evaluator.wire.alarms.records import read_commands
from evaluator.wire.outputs.settled import SettledUnreadable
from evaluator.wire.records import OutputRecord

MAX_SHARDS: Final = 1_000
"""Directories of one merge, all of which are open at once."""
_MAY_DIFFER: Final = frozenset(("skips", "learning"))
"""Settings that may differ between the parts of a merge."""
_MISSING_IF_OFF: Final = frozenset(("alarms", "scorers"))
"""Settings that are not part of the meaning, and missing if they are off."""


class Merge(Struct, frozen=True):
    """Directories that can be merged, and the settings of all."""

    shards: tuple[Shard, ...]
    settings: dict[str, Any]
    meaning: str
    code: Code

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> "Merge":
        """Checks that no task occurs twice and that results have the same meaning.

        Byte-equal directories count once. Raises RequestRefused or SourceUnusable.
        """
        if not 0 < len(shards) <= MAX_SHARDS:
            raise RequestRefused(
                f"{len(shards)} directories: merge 1 to {MAX_SHARDS} at once, and then the results."
            )
        by_chain = {shard.manifest.chain: shard for shard in reversed(shards)}
        different = tuple(sorted(by_chain.values(), key=shards.index))
        _require_distinct_tasks(different)
        first = different[0]
        for other in different[1:]:
            _require_alike(first, other)
        documents = [shard.manifest.settings for shard in different]
        largest = max(documents, key=len)
        settings = dict(largest)
        skips = {name: at for of in documents for name, at in of.get("skips", {}).items()}
        if skips:
            settings["skips"] = dict(sorted(skips.items(), key=lambda of: _log_and_task(of[0])))
        codes = {shard.code for shard in different}
        return cls(
            different,
            settings,
            first.manifest.meaning,
            codes.pop() if len(codes) == 1 else Code(None, None),
        )

    def parts(self) -> list[Part]:
        """The tasks of all directories by place, in order."""
        parts: dict[bytes, Part] = {}
        for shard in self.shards:
            for each in shard.parts:
                part = parts.setdefault(place_key(each), Part(each.place))
                part.ranges.update(each.ranges)
                part.tasks.update(each.tasks)
                part.gaps.update(each.gaps)
        return [
            Part(part.place, _by_task(part.ranges), dict(sorted(part.tasks.items())), part.gaps)
            for _, part in sorted(parts.items())
        ]

    def commands(self) -> list[AlarmCommand]:
        """The executed alarm commands of all directories by tick. Raises AlarmRefused.

        A replay that begins after a command executes it at its own first tick; the first tick of
        all directories counts.
        """
        first: dict[str, AlarmCommand] = {}
        for command in read_commands(chain(*(of.lines(ALARM_COMMANDS) for of in self.shards))):
            if command.applied_ms < first.setdefault(command.id, command).applied_ms:
                first[command.id] = command
        return sorted(first.values(), key=attrgetter("applied_ms"))

    def write(
        self,
        results: ResultDirectory,
        rules: FileRules,
        *,
        alarms: AlarmReplay | None,
        online_learning: OnlineLearning | None = None,
    ) -> WrittenFiles:
        """Writes and commits the files of all tasks; *results* is entered.

        *rules* has the measures of `settings`. Raises SourceUnusable or ResultsUnusable.
        """
        measures = rules.measures
        own = {name: of for name, of in self.settings.items() if name not in {"learning", "alarms"}}
        schemas = {
            f"{shard.directory / SCHEMAS}": b"".join(shard.lines(SCHEMAS))
            for shard in self.shards
            if SCHEMAS in shard.manifest.files
        }
        rules = replace(
            rules,
            settings=own,
            meaning=self.meaning,
            code=self.code,
            schemas=partial(merged, schemas) if schemas else None,
        )
        parts = self.parts()

        def rows(name: str) -> Iterator[tuple[SortKey, bytes]]:
            return heapq.merge(*(shard.rows(name, measures) for shard in self.shards))

        collecting = [each for each in (alarms, online_learning) if each is not None]
        self._write_settled(results, parts, collecting)
        tally: Tally = {}
        for shard in self.shards:
            rules.segments.fold(add_tally(tally, shard.tally(measures)))
        done = write_files(
            results, rules, parts, tally, rows, alarms=alarms, online_learning=online_learning
        )
        done.commit(results)
        return done

    def _write_settled(
        self,
        results: ResultDirectory,
        parts: Sequence[Part],
        collecting: Sequence[AlarmReplay | OnlineLearning],
    ) -> None:
        ends = {(place_key(part), task): end for part in parts for task, end in part.tasks.items()}
        settled = (shard.settled() for shard in self.shards)
        for place, task, shard, lines in heapq.merge(*settled, key=itemgetter(0, 1)):
            n_rows, end = 0, ends[place, task]
            while block := list(islice(lines, ROWS_PER_BLOCK)):
                n_rows += len(block)
                results.write(SETTLED, block)
                records = [OutputRecord(None, line) for line in block]
                try:
                    for each in collecting:
                        each.collect(results, records)
                except SettledUnreadable:
                    raise shard.damaged(SETTLED) from None
            if n_rows != end.settled:
                raise shard.damaged(SETTLED)
            for each in collecting:
                each.end_task(results, end.watermark_ms)


def _by_task(ranges: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return dict(sorted(ranges.items(), key=lambda of: _log_and_task(of[0])[1]))


def _log_and_task(name: str) -> tuple[str, int]:
    log, _, task = name.rpartition("-")
    return log, int(task)


def _require_distinct_tasks(shards: Sequence[Shard]) -> None:
    seen: dict[tuple[bytes, int], tuple[Shard, Part]] = {}
    for shard in shards:
        for part in shard.parts:
            for task in part.tasks:
                other, of = seen.setdefault((place_key(part), task), (shard, part))
                if other is not shard:
                    where = "of the same topics" if part.place else "of files"
                    raise RequestRefused(
                        f"{other.directory} and {shard.directory} both have task {task} {where}, "
                        "and are not byte-equal. Merge each task once."
                    )
                if of.place != part.place:
                    raise RequestRefused(f"{shard.directory} has other partitions than before.")


def _require_alike(first: Shard, other: Shard) -> None:
    mine, others = first.manifest.settings, other.manifest.settings
    same_meaning = first.manifest.meaning == other.manifest.meaning
    compared = {*(mine.keys() & others.keys()), *_MISSING_IF_OFF} - _MAY_DIFFER
    differing = sorted(name for name in compared if mine.get(name) != others.get(name))
    if same_meaning and not differing:
        return
    named = ", ".join(differing) or "the version of the rules, or settings that one of them lacks"
    raise RequestRefused(
        f"{first.directory} and {other.directory} have different meanings: {named}. Replay one of "
        "them again with the settings of the other."
    )
