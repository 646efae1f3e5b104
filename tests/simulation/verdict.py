"""Compares all outputs, snapshots and states with the oracle over the inputs."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from evaluator.core.engine.engine import Engine
from evaluator.core.join.changes import Checkpoint, StoredTask
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import LOGS
from evaluator.core.types.tally import Tally
from evaluator.exposition.snapshot import Snapshot
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.records import OUTPUTS, OutputRecord
from evaluator.wire.state.checkpoint import decode_checkpoint
from tests.engines import open_windows
from tests.oracle.oracle import MINUS_INFINITY, Task, judge
from tests.oracle.run import counted, new_engine
from tests.oracle.totals import comparable
from tests.worker.truth import Truth

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

COUNTERS = {"settled", "settled_queries", "dead_letters", "delay", "delay_sum_ms", "extra"}
FINAL_OUTCOMES = {
    "rankings": (("read",), ("malformed",), ("heartbeat",), ("duplicate",), ("conflicting",),
                 ("open", "expired")),
    "judgments": (("read",), ("malformed",), ("heartbeat",), ("duplicate",), ("conflicting",),
                  ("late",), ("orphan",), ("over_limit",), ("applied",)),
}  # fmt: skip
NOT_IN_ORACLE = {"delay", "delay_sum_ms"}
"""Counts that the oracle does not compute."""
N_CHECKED_CHECKPOINTS = 2


def check_same(found: Mapping, expected: Mapping, what: str) -> None:
    """Lists the differences of two mappings, nested ones included."""
    differing = [
        f"{path}: {one!r}, but the oracle says {other!r}"
        for path, one, other in differences(found, expected)
    ]
    assert not differing, f"{what}\n" + "\n".join(differing[:10])


def differences(found: Any, expected: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any, Any]]:
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in dict.fromkeys([*found, *expected]):
            yield from differences(found.get(name), expected.get(name), (*path, name))
    elif found != expected:
        yield path, found, expected


# During the run


def exported(counters: Tally) -> Tally:
    """The counts of a process that are exported as counters."""
    shown = {path: n for path, n in counters.items() if path[0] in COUNTERS}
    for log, outcomes in FINAL_OUTCOMES.items():
        for parts in outcomes:
            shown[log, parts[0]] = sum(counters.get((log, part), 0) for part in parts)
    return shown


def check_counters(before: Snapshot, now: Snapshot) -> None:
    """Checks that no counter of a process ever falls."""
    if before.counters is now.counters:
        return
    shown = exported(now.counters)
    for path, n in exported(before.counters).items():
        assert shown[path] >= n, f"the counter {path} fell from {n} to {shown[path]}"


# At the end


def check_nothing_is_counted_twice(world: "Simulation") -> None:
    """Checks the counters of all processes together.

    They are comparable if the disk survived throughout, or if each earlier owner of a task had
    committed its progress to the group. The last process is then excluded, because those before it
    were killed.
    """
    if world.expiry.reported or not (world.disk_survived or world.clean_handovers):
        return
    lives = world.lives if world.disk_survived else world.lives[:-1]
    counted_once: Tally = {}
    for task in world.truth.tasks.values():
        add_tally(counted_once, exported(task.tally()))
    together: Tally = {}
    for life in lives:
        add_tally(together, exported(life.worker.snapshot.counters))
    for path, n in together.items():
        if path[0] not in NOT_IN_ORACLE:
            assert n <= counted_once.get(path, 0), f"{path} was counted {n} times"


def check_end(world: "Simulation") -> None:
    """Checks a worker that has read all records: its state, and the outputs of all processes.

    `loss` checks tasks with a reported loss.
    """
    last = world.last
    assert last is not None
    truth = world.truth
    check_totals(world, last.worker.snapshot, truth)
    for number, task in truth.tasks.items():
        check_open_windows(last.engines[number], task)
        check_early(last.engines[number], task)
    outputs = {(o, t): world.broker.output(o, t) for o in OUTPUTS for t in truth.tasks}
    check_nothing_is_counted_twice(world)
    truth.check_evaluations(outputs)
    truth.check_settled(outputs)
    truth.check_windows(outputs)
    truth.check_dead_letters(outputs, once=False)


def check_totals(world: "Simulation", snapshot: Snapshot, truth: Truth) -> None:
    tally: Tally = {}
    for view in snapshot:
        if view.task in truth.tasks:
            add_tally(tally, view.tally)
        ends = {log: world.broker.end_of(log, view.task) for log in LOGS}
        assert view.positions == ends
        assert not view.restoring
    assert [view.task for view in snapshot] == list(range(world.plan.n_tasks))
    measures = MeasureSet.parse(list(world.plan.settings.measures))
    check_same(comparable(totals_document(tally, measures)), truth.totals, "the totals at the end")
    assert ("extra", "lost") not in tally


def check_open_windows(engine: Engine, task: Task) -> None:
    """Windows that can still change."""
    expected = {
        (window.start_ms, *row): sums
        for window in task.windows
        if not window.final
        for row, sums in window.sums.items()
    }
    found = {tuple(w[:5]): (w.queries, w.sum_units) for w in open_windows(engine) if w.queries}
    check_same(found, {row: sums for row, sums in expected.items() if sums[0]}, "open windows")


def check_early(engine: Engine, task: Task) -> None:
    assert engine.n_open == len(task.open)
    assert engine.n_early == sum(o == "early" for o in task.judgment_outcomes.values())
    assert dict(engine.clocks_ms) == task.clocks_ms


def check_samples(world: "Simulation") -> None:
    """Checks snapshots that processes published at some moments, and checkpoint records."""
    for view in world.samples:
        if view.task not in world.truth.tasks:
            continue
        task = prefix(world, view.task, view.positions)
        what = f"shown of task {view.task} at {dict(view.positions)}"
        check_same(counted(view.tally), counted(task.tally()), what)
    random = Random(world.plan.seed)
    for number in world.truth.tasks:
        records = world.broker.output("checkpoints", number)
        for record in chosen(records, random):
            check_checkpoint(world, number, decode_checkpoint(record.value))


def chosen(records: Sequence[OutputRecord], random: Random) -> list[OutputRecord]:
    """Checks the last record, which counts, and others."""
    others = random.sample(records[:-1], min(len(records[:-1]), N_CHECKED_CHECKPOINTS - 1))
    return [*records[-1:], *others]


def prefix(world: "Simulation", number: int, positions: dict) -> Task:
    """The results of the oracle for a task up to these offsets."""
    task = world.truth.tasks[number]
    read = [
        [record for record in records if record.offset < positions[log]]
        for log, records in zip(LOGS, (task.rankings, task.judgments), strict=True)
    ]
    return judge(read[0], read[1], world.plan.settings)


def check_checkpoint(world: "Simulation", number: int, checkpoint: Checkpoint) -> None:
    """Checks that counts, sums and the digest are those of its offsets."""
    head = checkpoint.head
    task = prefix(world, number, head.positions)
    engine = new_engine(world.plan.settings)
    engine.load(StoredTask(head, checkpoint.totals, {}, [], []))
    expected = counted(task.tally())
    early = expected.pop(("judgments", "early"), 0)
    what = f"a checkpoint record of task {number} at {head.positions}"
    check_same(counted(engine.tally()), expected, what)
    watermark = None if task.watermark == MINUS_INFINITY else task.watermark
    assert checkpoint.watermark_ms == watermark
    assert checkpoint.digest.n_open == len(task.open)
    assert checkpoint.digest.n_early == early
    assert head.counts["settled"] == len(task.settled)
    still_open = [window for window in task.windows if not window.final]
    sums = [units for window in still_open for _, units in window.sums.values()]
    assert checkpoint.digest.sum_units == sum(sums)
