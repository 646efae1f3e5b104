"""Replays the world of a seed, or runs world after world: `python -m tests.simulation SEED`."""

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.world import Simulation, digest


def show(*lines: object) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def replay(seed: int) -> None:
    world = Simulation(seed)
    show(world.plan)
    try:
        world.live()
    finally:
        show(*world.steps)
    show(f"seed {seed}: all is well; digest {digest(world)}")


def soak(first: int, n_worlds: int | None, minutes: float | None) -> int:
    """Runs world after world; prints the failed ones, and how to replay them."""
    counts: Counter[str] = Counter()
    failed: list[int] = []
    began, seed = time.monotonic(), first
    while n_worlds is None or seed < first + n_worlds:
        spent = time.monotonic() - began
        if minutes is not None and spent >= 60 * minutes:
            break
        world = Simulation(seed)
        try:
            world.live()
        except Exception as error:  # noqa: BLE001 - whatever fails, the next world is next
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = (str(error) or where.line or "").splitlines()[0][:150]
            show(f"seed {seed} FAILED in {where.name}: {type(error).__name__}: {line}")
        counts += world.counts
        seed += 1
        if (seed - first) % 500 == 0:
            show(f"{seed - first} worlds, {len(failed)} failed, {spent:.0f} s")
    for what, n in sorted(counts.items()):
        show(f"{n:9}  {what}")
    show(f"worlds {first} to {seed - 1}: {len(failed)} failed {failed[:20]}")
    if failed:
        show(f"see one: python -m tests.simulation {failed[0]}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this world, with all its steps")
    parser.add_argument("--first", type=int, help="the first seed of a soak")
    parser.add_argument("--worlds", type=int, help="how many worlds; without it until stopped")
    parser.add_argument("--minutes", type=float, help="for how long")
    asked = parser.parse_args()
    if asked.seed is not None:
        replay(asked.seed)
        return 0
    first = asked.first if asked.first is not None else time.time_ns() // 1_000_000
    try:
        return soak(first, asked.worlds, asked.minutes)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
