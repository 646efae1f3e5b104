"""What the machine has room for: the memory limit of a container, the free disk."""

import shutil
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
NO_LIMIT: Final = 1 << 60
"""From here on a number of version 1 means that there is none."""


def memory_limit_bytes(own: Path = OWN, cgroups: Path = CGROUPS) -> int | None:
    """The least limit of this process's control group and of those around it; None without one.

    Version 2 and version 1. Inside of a container the path of the group may be that of the host,
    while the container's own group is the root of what is mounted.
    """
    limits = []
    for controllers, path in _groups(own):
        root, name = (
            (cgroups, "memory.max")
            if not controllers
            else (cgroups / "memory", "memory.limit_in_bytes")
        )
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            limits += _limit_in(folder / name)
            if folder == root:
                break
    return min(limits, default=None)


def _groups(own: Path) -> list[tuple[str, str]]:
    """Controllers (none for version 2) and path of the groups that limit memory."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found = [(parts[1], parts[2]) for parts in lines if len(parts) == 3]
    return [(names, path) for names, path in found if not names or "memory" in names.split(",")]


def _limit_in(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except (OSError, ValueError):
        return []
    return [int(text)] if text.isdecimal() and int(text) < NO_LIMIT else []


def free_bytes(folder: Path) -> int | None:
    """What may still be written to the disk of a folder; None if it cannot be seen."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
