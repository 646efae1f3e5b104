"""The resources of the machine: limits of control groups, and the disk."""

import pytest

from evaluator.adapters.linux import NO_LIMIT, free_bytes, memory_limit_bytes


@pytest.fixture
def limit(tmp_path):
    """The limit that is found with these files of control groups."""

    def found(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(text)
        return memory_limit_bytes(tmp_path / "own", tmp_path / "groups")

    return found


V1 = "9:cpu,cpuacct:/a\n4:memory:/docker/abc\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "2147483648\n"}, 2 << 30),
        ("0::/pod/worker\n", {"memory.max": "max\n", "pod/worker/memory.max": "1024\n"}, 1024),
        ("0::/pod/worker\n", {"pod/memory.max": "512\n", "pod/worker/memory.max": "1024"}, 512),
        ("0::/pod/worker\n", {"pod/worker/memory.max": "max\n"}, None),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "4096\n"}, 4096),
        (V1, {"memory/memory.limit_in_bytes": "8192\n"}, 8192),  # the path is that of the host
        (V1, {"memory/memory.limit_in_bytes": f"{NO_LIMIT}\n"}, None),
        (V1, {"memory.max": "1\n"}, None),
        ("", {}, None),
        ("garbage\n0::/\n", {"memory.max": "garbage"}, None),
    ],
)
def test_the_lowest_limit_of_a_control_group_and_its_parents_applies(limit, own, files, expected):
    assert limit(own, files) == expected


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_limit_bytes(tmp_path / "no", tmp_path) is None


def test_free_space_is_that_of_the_disk_of_a_directory(tmp_path):
    assert free_bytes(tmp_path) > 0
    assert free_bytes(tmp_path / "no") is None
