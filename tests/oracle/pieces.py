"""Worlds in pieces: read batch by batch, and reduced while they still fail a test."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from tests.oracle.worlds import World

Step = tuple[int, int]
"""The numbers of records of `rankings` and of `judgments` in a batch."""


def steps(random: Random, n_rankings: int, n_judgments: int) -> list[Step]:
    """A random interleaving in random batches; some are empty, some of one log only."""
    left = {"rankings": n_rankings, "judgments": n_judgments}
    style = random.choice(("mixed", "mixed", "rankings", "judgments", "single", "whole"))
    made: list[Step] = []
    while any(left.values()):
        take = {name: min(batch_size(random, style, name, left), n) for name, n in left.items()}
        made.append((take["rankings"], take["judgments"]))
        for name in left:
            left[name] -= take[name]
    return made


def batch_size(random: Random, style: str, name: str, left: dict[str, int]) -> int:
    """The number of records of a log in a batch of a style, such as single or whole."""
    if style == "whole":
        return left[name]
    if style in ("rankings", "judgments") and style != name and left[style]:
        return 0
    if style == "single" and sum(left.values()) < 100:
        turn = random.choice([log for log, n in left.items() if n])
        return int(turn == name)
    return random.choice((0, 0, 1, 1, 2, 3, 5, 100, 100))


def positions(of_steps: list[Step]) -> Iterator[Step]:
    """The numbers of records of both logs that have been read after each step."""
    read = (0, 0)
    for step in of_steps:
        read = (read[0] + step[0], read[1] + step[1])
        yield read


# -- making failures small ----------------------------------------------------------------------


def shrunk(failing: World, fails: Callable[[World], bool]) -> World:
    """Removes records as long as the rest still fails."""
    small = failing
    improved = True
    while improved:
        improved = False
        for candidate in one_record_less(small):
            if fails(candidate):
                small, improved = candidate, True
                break
    return small


def one_record_less(made: World) -> Iterator[World]:
    for i in range(len(made.rankings)):
        yield replace(made, rankings=made.rankings[:i] + made.rankings[i + 1 :])
    for i in range(len(made.judgments)):
        yield replace(made, judgments=made.judgments[:i] + made.judgments[i + 1 :])
    if len(made.settings.measures) > 1:
        yield replace(made, settings=replace(made.settings, measures=made.settings.measures[:1]))


def described(made: World) -> str:
    """A world in the message of a failing test."""
    lines = [repr(made.settings), f"max_future_skew_ms={made.max_future_skew_ms}"]
    for log, raws in (("rankings", made.rankings), ("judgments", made.judgments)):
        lines += [f"{log} {raw.offset} @{raw.timestamp_ms} {raw.value!r}" for raw in raws]
    return "\n".join(lines)
