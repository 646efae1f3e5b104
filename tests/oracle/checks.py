"""Comparison of the engine with the oracle after a batch and after a run, and between runs."""

from collections import Counter
from random import Random

from evaluator.core.types.tally import GroupedTally, Tally
from tests.engines import open_windows
from tests.oracle.oracle import MINUS_INFINITY, Task
from tests.oracle.pieces import steps
from tests.oracle.run import (
    Reader,
    Run,
    counted,
    expected_content,
    expected_settled,
    feed,
    new_run,
)
from tests.oracle.worlds import World


def check_state(run: Run, task: Task) -> None:
    """Checks the current state of the engine."""
    engine = run.engine
    tally, expected = engine.tally(), task.tally()
    assert all(type(count) is int for count in tally.values())
    assert counted(tally) == counted(expected)
    rows = {path for path in expected if path[0].endswith(("running", "settled"))}
    assert rows <= tally.keys(), "rows start at zero with the first ranking"
    assert engine.n_open == len(task.open)
    assert engine.n_early == expected["judgments", "early"]
    check_ledger(tally)
    delays = [count for path, count in tally.items() if path[0] == "delay"]
    assert sum(delays) == tally["judgments", "applied"]


def check_ledger(tally: Tally) -> None:
    """Checks that `read` is the sum of all outcomes."""
    for log in ("rankings", "judgments"):
        outcomes = {path[1]: count for path, count in tally.items() if path[0] == log}
        assert outcomes.pop("read") == sum(outcomes.values())


def check_clocks(run: Run, task: Task) -> None:
    assert dict(run.engine.clocks_ms) == task.clocks_ms
    watermark = None if task.watermark == MINUS_INFINITY else task.watermark
    assert run.engine.watermark_ms == watermark


def check_outputs(run: Run, task: Task) -> None:
    """Checks every output of the engine so far."""
    check_evaluations(run, task)
    assert run.settled == [expected_settled(query) for query in task.settled]
    letters = [(letter.log, letter.offset, letter.reason) for letter in run.dead_letters]
    assert len(letters) == len(set(letters))
    assert set(letters) == task.dead_letters
    check_windows(run, task)
    check_last_revisions(run, task)


def check_evaluations(run: Run, task: Task) -> None:
    """Checks that each emitted revision is the oracle's, and that the last one was emitted."""
    queries = {query.identity: query for query in task.queries}
    for (identity, revision), emitted in run.evaluations.items():
        query = queries[identity]
        assert emitted.content == expected_content(query, query.evaluation_at(revision))
    last = {
        identity: emitted.revision for identity, emitted in run.last.items() if emitted.revision
    }
    assert last == {query.identity: query.revision for query in task.queries if query.revision}


def check_last_revisions(run: Run, task: Task) -> None:
    """Checks that expired queries are finished, and that open ones remain."""
    for emitted, queries in ((run.finished, task.expired), (run.remaining(), task.open)):
        assert emitted.keys() <= {query.identity for query in queries}
        for query in queries:
            if query.revision or query.identity in emitted:
                one = emitted[query.identity]
                assert one.revision == query.revision
                assert one.content == expected_content(query, query.running)


def check_windows(run: Run, task: Task) -> None:
    """Checks all windows; rows without a query may be absent."""
    final: dict[tuple[int | str, ...], tuple[int, int]] = {}
    still_open: dict[tuple[int | str, ...], tuple[int, int]] = {}
    for window in task.windows:
        for row, sums in window.sums.items():
            (final if window.final else still_open)[window.start_ms, *row] = sums
    assert len(run.windows) == len({tuple(window[:5]) for window in run.windows})
    assert {tuple(w[:5]): (w.queries, w.sum_units) for w in run.windows if w.queries} == final
    open_now = open_windows(run.engine)
    assert {tuple(w[:5]): (w.queries, w.sum_units) for w in open_now if w.queries} == still_open
    starts = [window.start_ms for window in run.windows]
    assert starts == sorted(starts)


def read_checking_every_prefix(
    world: World, random: Random, *, reads: type[Reader] = Reader
) -> Run:
    """A run in random pieces, which equals the oracle of exactly that prefix after each batch."""
    reader = reads(world)
    run = new_run(world.settings)
    for read in feed(run, reader, steps(random, len(world.rankings), len(world.judgments))):
        check_positions(run, world, read)
        task = reader.judged(read)
        check_state(run, task)
        check_clocks(run, task)
        check_outputs(run, task)
        check_seen(run, task)
    return run


def check_seen(run: Run, task: Task) -> None:
    """Checks exposures and clicks by rank, which are counted with `silence = zero`."""
    if run.settings.silence == "zero":
        found = run.seen.added_to(GroupedTally())
        expected = Counter(each for query in task.settled for each in query.seen)
        assert {path[1:]: n for path, n in found.items() if n} == expected


def check_positions(run: Run, world: World, read: tuple[int, int]) -> None:
    positions = run.engine.positions
    if read[0]:
        assert positions["rankings"] == world.rankings[read[0] - 1].offset + 1
    if read[1]:
        assert positions["judgments"] == world.judgments[read[1] - 1].offset + 1


def read_whole(world: World, random: Random, *, expire: bool = True) -> Run:
    """A run in random pieces, without checks of intermediate outputs."""
    run = new_run(world.settings, expire=expire)
    for _ in feed(run, Reader(world), steps(random, len(world.rankings), len(world.judgments))):
        pass
    return run


def check_same(one: Run, other: Run) -> None:
    """Checks that two runs over the same prefixes are equal bit for bit."""
    assert one.engine.tally() == other.engine.tally()
    assert repr(one.settled) == repr(other.settled)  # including the order of grades
    assert one.windows == other.windows
    assert set(one.dead_letters) == set(other.dead_letters)
    assert one.finished == other.finished
    assert one.remaining() == other.remaining()
    assert open_windows(one.engine) == open_windows(other.engine)
    assert one.last == other.last
    for key in one.evaluations.keys() & other.evaluations.keys():
        assert one.evaluations[key].text == other.evaluations[key].text


def check_end(run: Run, task: Task) -> None:
    """Ends a replay: the watermark becomes plus infinity, also in *task*."""
    for outputs in run.engine.finish():
        run.add_outputs(outputs)
    check_state(run, task)
    check_outputs(run, task)
    assert not run.remaining()
    assert not open_windows(run.engine)


def check_world(world: World, seed: int) -> None:
    """Checks every rule for one world."""
    one = read_checking_every_prefix(world, Random(seed))
    other = read_whole(world, Random(seed + 1))
    check_same(one, other)
    keeping = read_whole(world, Random(seed + 2), expire=False)
    check_same(one, keeping)
    at_end = world.judge(at_end=True)
    for run in (one, other, keeping):
        check_end(run, at_end)
    check_same(one, other)
    check_same(one, keeping)
