"""Fuzzes the compiled part with libFuzzer and sanitizers: `python -m tests.wire.fuzz --seconds 60`.

Needs clang with its runtime (`apt-get install clang libclang-rt-14-dev`). The corpus is
`fuzz_corpus.zip`; `--keep` adds inputs that reached more of the code. A failing input remains in
the working directory, as `crash-...`.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from evaluator.mapping.document import read_document
from evaluator.mapping.plan import plan_of
from evaluator.wire.native import library
from tests.mapping import test_avro_texts as avro
from tests.mapping import test_plan as plans
from tests.mapping import test_protobuf_texts as protobuf
from tests.wire.test_watched_decoder import VALUES as SETTLED

TARGET = Path(__file__).with_name("native_fuzz.c")
CORPUS = Path(__file__).with_name("fuzz_corpus.zip")
FLAGS = "-std=c11 -g -O1 -Wall -Wextra -Werror -fno-sanitize-recover=all".split()
MAX_SIZE = 4_096
RECORD_SETS, RANKINGS, JUDGMENTS, MAPPED, TEXTS = KINDS = range(5)
CLICKS = {
    "session_id": "s", "request_id": "r", "timestamp": 1_769_846_400_000, "text": "q",
    "locale": "de", "items": [{"id": 1, "score": 0.5}], "item_id": "1", "action": "purchase",
}  # fmt: skip
UBI = {
    "query_id": "q", "timestamp": "2026-01-31T08:00:00.5Z", "application": "shop",
    "user_query": "q", "query_response_hit_ids": ["1", 2], "action_name": "click",
    "event_attributes": {"object": {"object_id": "1"}},
}  # fmt: skip
PRESETS = {"clicks": CLICKS, "ubi": UBI}


def seed(kind: int, flags: int, parts: Iterable[bytes]) -> bytes:
    """An input of the target."""
    return bytes((kind, flags)) + (b"" if kind in {RECORD_SETS, TEXTS} else b"\xff").join(parts)


def planned() -> Iterator[tuple[bytes, list[bytes]]]:
    """The plans of the target, each with some records."""
    chance = random.Random(1)
    for text in plans.PLANNED:
        yield plans.given(plan_of(plans.mapping_of(text))), list(plans.documents(chance, 30))
    for name, record in PRESETS.items():
        path = resources.files("evaluator.mapping") / "presets" / f"{name}.toml"
        for mapping in read_document(path.read_text(), path.name).logs.values():
            yield plans.given(plan_of(mapping)), [json.dumps(record).encode()]


def schemas() -> Iterator[tuple[bytes, list[bytes]]]:
    """The tables of the target for schemas, each with some records."""
    chance = random.Random(1)
    for text in avro.MAPPINGS:
        records = [avro.avro(7, avro.TEXT, avro.event(chance))[5:] for _ in range(20)]
        yield avro.given(avro.parts_of(text)[1].tables(7, ())), records
    tables, _ = protobuf.tables_of(protobuf.odd_file(), ".shop.M", protobuf.TREE)
    yield avro.given(tables), [each for each, _ in protobuf.ODD.values() if len(each) < MAX_SIZE]
    for file, tree, (whole, *_) in protobuf.random_cases(chance, 8):
        tables, _ = protobuf.tables_of(file, ".shop.M0", tree)
        yield avro.given(tables), whole


def seeds() -> Iterator[bytes]:
    """Inputs for settled queries, plans and schemas, and with more candidates than a plan maps."""
    yield seed(JUDGMENTS, 2, SETTLED)
    yield seed(MAPPED, 1, [b"", b'{"data":{"ids":[' + b"1," * 1_000 + b"1]}}"])
    for flags, (_, records) in enumerate(planned()):
        yield from (seed(MAPPED, flags, [b"key", record, record]) for record in records)
    for flags, (_, records) in enumerate(schemas()):
        yield from (seed(TEXTS, flags, [record]) for record in records)


def build(folder: Path, *how: str) -> tuple[Path, dict[str, str]]:
    """Builds the program; returns it and its environment."""
    given, program = folder / "tables", folder / "fuzz"
    tables = [[each for each, _ in kind] for kind in (planned(), schemas())]
    head = library.powers_of_five.tobytes() + struct.pack("<2q", *map(len, tables))
    given.write_bytes(head + b"".join(tables[0] + tables[1]))
    subprocess.run([*how, *FLAGS, "-o", program, TARGET], check=True)
    return program, {**os.environ, "TABLES": str(given)}


def unpack(folder: Path) -> list[Path]:
    """The files of the corpus."""
    with zipfile.ZipFile(CORPUS) as corpus:
        corpus.extractall(folder)
    return sorted(folder.iterdir())


def keep(files: Iterable[Path]) -> None:
    """Replaces the corpus; equal files result in equal bytes."""
    contents = sorted({path.read_bytes() for path in files})
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as corpus:
        for content in contents:
            info = zipfile.ZipInfo(hashlib.sha1(content, usedforsecurity=False).hexdigest())
            corpus.writestr(info, content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Runs libFuzzer."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="add what was found to the corpus")
    arguments = parser.parse_args()
    clang = shutil.which("clang") or shutil.which("clang-14")
    if clang is None:
        sys.exit("fuzz: needs clang (apt-get install clang libclang-rt-14-dev).")
    with tempfile.TemporaryDirectory() as name:
        folder, found, least = Path(name), Path(name) / "found", Path(name) / "least"
        for each in (found, least):
            each.mkdir()
        program, env = build(folder, clang, "-fsanitize=fuzzer,address,undefined")
        unpack(found)
        for n, content in enumerate(seeds()):
            (found / f"seed{n}").write_bytes(content)
        limits = [f"-max_total_time={arguments.seconds}", f"-max_len={MAX_SIZE}", "-timeout=10"]
        if subprocess.run([program, *limits, found], env=env, check=False).returncode:
            sys.exit("fuzz: an input failed")
        if arguments.keep:
            subprocess.run([program, "-merge=1", least, found], env=env, check=True)
            keep(least.iterdir())


if __name__ == "__main__":
    main()
