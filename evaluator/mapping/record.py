"""A record of a foreign topic."""

from typing import NamedTuple

from evaluator.wire.records import Headers


class Record(NamedTuple):
    """A record, as mappings and the functions of entry points receive it."""

    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None

    def header(self, name: str) -> str | None:
        """The text of the last header of this name."""
        for each, value in reversed(self.headers):
            if each == name:
                return None if value is None else value.decode("utf-8", "replace")
        return None
