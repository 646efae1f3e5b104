"""Where the time of the loop goes."""

from time import perf_counter


class Stages:
    """Seconds spent in each stage of the loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = perf_counter()

    def begin(self) -> None:
        """Starts the stopwatch."""
        self._since = perf_counter()

    def end(self, stage: str) -> None:
        """Adds the time since the last `begin` or `end` to a stage."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now
