"""Replays the world of a seed, or goes from world to world: `python -m tests.simulation SEED`."""

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.world import Simulation, digest

FIRST_SEED = 1


def replay(seed: int) -> int:
    world = Simulation(seed)
    print(world.plan)
    try:
        world.live()
    except BaseException:
        print(*world.steps, sep="\n")
        traceback.print_exc()
        return 1
    print(*world.steps, sep="\n")
    print(f"seed {seed}: all is well; digest {digest(world)}")
    return 0


def soak(first: int, n_worlds: int | None, minutes: float | None) -> int:
    """World after world; those that fail are named, and how to see them."""
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
        except Exception as error:
            failed.append(seed)
            line = (str(error) or repr(error)).splitlines()[0][:150]
            print(f"seed {seed} FAILED: {type(error).__name__}: {line}", flush=True)
        counts += world.counts
        seed += 1
        if (seed - first) % 500 == 0:
            print(f"{seed - first} worlds, {len(failed)} failed, {spent:.0f} s", flush=True)
    for what, n in sorted(counts.items()):
        print(f"{n:9}  {what}")
    print(f"worlds {first} to {seed - 1}: {len(failed)} failed {failed[:20]}")
    if failed:
        print(f"see one: python -m tests.simulation {failed[0]}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this world, with all its steps")
    parser.add_argument("--first", type=int, help="the first seed of a soak")
    parser.add_argument("--worlds", type=int, help="how many worlds; without it until stopped")
    parser.add_argument("--minutes", type=float, help="for how long")
    asked = parser.parse_args()
    if asked.seed is not None:
        return replay(asked.seed)
    first = asked.first if asked.first is not None else time.time_ns() // 1_000_000
    try:
        return soak(first, asked.worlds, asked.minutes)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
