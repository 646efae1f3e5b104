"""Memory and disk: the memory limit of a container, the memory in use, the free disk space."""

import os
import shutil
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
NO_LIMIT: Final = 1 << 60
"""Version 1 shows a number from here on if there is no limit."""


def memory_limit_bytes(own: Path = OWN, cgroups: Path = CGROUPS) -> int | None:
    """The smallest limit of this process's control group and its parents; None without one.

    Reads control groups of version 2 and version 1. In a container the path of the group may be
    that of the host, while the mounted root is the container's own group.
    """
    limits = []
    for controllers, path in _groups(own):
        root, name = cgroups, "memory.max"
        if controllers:  # version 1
            root, name = cgroups / "memory", "memory.limit_in_bytes"
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
    """Free space on the file system of a folder; None if it cannot be read."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Resident memory of this process; None if it cannot be read."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
