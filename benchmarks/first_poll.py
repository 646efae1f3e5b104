"""One process of `benchmarks.startup`: prints its CPU time at its first poll, and ends.

It imports only measured modules.
"""

import os
import sys
import time
from typing import NoReturn


def report() -> NoReturn:
    """Prints the CPU time of this process, and the modules of other packages that it has loaded."""
    seconds = time.process_time()
    ours = {*sys.stdlib_module_names, "evaluator", "benchmarks"}
    modules = [name for name in sys.modules if name.partition(".")[0] not in ours]
    os.write(1, f"\n{seconds} {' '.join(modules)}\n".encode())
    os._exit(0)


def run(arguments: list[str]) -> None:
    """A command of `evaluator`, up to its end or to the first poll of an assigned partition."""
    from evaluator import cli  # noqa: PLC0415 - this is measured

    if arguments[0] == "run":
        from evaluator.adapters.kafka.source import KafkaSource  # noqa: PLC0415 - this too

        poll = KafkaSource.poll

        async def first_poll(self, partitions, **options):
            return report() if partitions else await poll(self, partitions, **options)

        KafkaSource.poll = first_poll
    try:
        sys.exit(cli.main(arguments))
    except SystemExit as end:
        if end.code:
            raise
    report()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "evaluator":
        run(rest)
    for name in rest:
        __import__(name)
    report()
