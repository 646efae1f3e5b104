"""The statements of docs/security.md about the program."""

import re

import msgspec
import pytest

from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.config import Settings
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_a_quarantined_store_is_in_the_directory_of_the_page(tmp_path):
    states = RocksStateDirectory(tmp_path)
    states.hold()
    states.open(0).close()
    states.quarantine(0)
    states.release()
    (quarantined,) = [path.name for path in tmp_path.iterdir() if "quarantine" in path.name]
    assert f"`{quarantined.replace('0', 'N')}`" in PAGE


def test_the_page_names_the_limits_of_open_queries_and_their_defaults():
    limits = " ".join(PAGE.split("## Limits")[1].split("## ")[0].split())
    (mebibytes,) = re.findall(r"`memory_tier_bytes` in memory \((\d+) MiB\)", limits)
    assert Settings().memory_tier_bytes == int(mebibytes) << 20
    assert Settings().max_store_bytes == 0


def test_the_state_directory_of_the_image_has_the_mode_of_the_page():
    (mode,) = re.findall(r"in the image it is `(\d+)`", PAGE)
    assert f"--mode={mode} /var/lib/evaluator" in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize(
    "name", ["sasl_password_file", "ssl_cafile", "ssl_certfile", "ssl_keyfile"]
)
def test_a_change_of_any_login_file_is_detected(name, tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    connection = msgspec.structs.replace(Connection("b:1"), **{name: str(file)})
    before = connection.secrets()
    file.write_text("new")
    assert connection.secrets() != before
