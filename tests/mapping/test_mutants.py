"""Damaged records of every format: each is a message, left out, or one dead letter with its bytes.

MAPPING_MUTANTS is how many of them a run makes.
"""

import asyncio
import gzip
import json
import os
import random
import textwrap
from collections import Counter
from functools import partial

import pytest

from evaluator.adapters.files.logs import FileRange
from evaluator.cli import main
from evaluator.core.types.records import Outputs
from evaluator.mapping.document import read_document, read_mapping
from evaluator.mapping.schemas import Answer
from evaluator.mapping.stage import Stage
from evaluator.ports import SourceUnusable
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.messages.staged import restored
from evaluator.wire.records import MAX_RECORD_BYTES
from tests.mapping import test_framed, test_otlp, test_protobuf
from tests.mapping.registry import avro
from tests.mapping.test_framed import damaged
from tests.mapping.test_interpreter import MAPPINGS
from tests.mapping.test_plan import PLANNED, documents
from tests.mapping.test_stage import records_of
from tests.oracle.checks import check_ledger
from tests.oracle.rules import Settings
from tests.oracle.run import new_engine
from tests.repeats import sized

N_MUTANTS = int(os.environ.get("MAPPING_MUTANTS", sized(30_000, quick=5_000)))
DECODERS = {"rankings": decode_rankings, "judgments": decode_judgments}
BATCH = 500


def stages_in(text, answers, folder):
    logs = read_document(text, str(folder / "m.toml")).logs
    return {
        log: Stage(each, max_future_skew_ms=10**16, answers=answers) for log, each in logs.items()
    }


def outcomes_of(stage, records, log, values, *, closes=False):
    """Counts of the records: each once; refused ones keep their bytes."""
    columns = stage.decoded(records, partial(DECODERS[log], max_future_skew_ms=10**16))
    messages = {offset >> columns.index_bits for offset in columns.offsets.tolist()}
    letters = restored(Outputs(dead_letters=columns.malformed), {log: stage}).dead_letters
    refused = {letter.offset for letter in letters}
    assert len(letters) == len(refused)
    assert not messages & refused
    n_empty = sum(value is None for value in values)
    assert len(messages) + len(refused) + columns.n_left_out + n_empty == len(values)
    first = int(records.offsets[0])
    for letter in letters:
        assert letter.value == values[letter.offset - first]
    if closes:
        require_closed(stage, log, columns, letters)
    counts = Counter(letter.reason for letter in letters)
    return counts + Counter(message=len(messages), left_out=columns.n_left_out)


def require_closed(stage, log, columns, letters):
    """An engine that reads these columns counts each message, and each other record, once."""
    engine = new_engine(Settings(measures=("mrr",)))
    outputs = engine.receive(*(columns if log == each else None for each in DECODERS))
    tally = engine.tally()
    check_ledger(tally)
    counted = Counter({path[1]: n for path, n in tally.items() if path[0] == log})
    n_messages = len(columns.offsets) + columns.n_heartbeats
    assert counted["read"] == n_messages + len(letters) + columns.n_left_out
    assert (counted["malformed"], counted["left_out"]) == (len(letters), columns.n_left_out)
    written = restored(outputs, {log: stage}).dead_letters
    assert len(written) == sum(n for path, n in tally.items() if path[0] == "dead_letters")
    places = Counter((letter.offset, letter.reason) for letter in written)
    assert all(places[letter.offset, letter.reason] == 1 for letter in letters)


def json_worlds(folder):
    for text in (*MAPPINGS, *PLANNED):
        ((log, stage),) = stages_in(text, {}, folder).items()
        yield log, stage, lambda chance: list(documents(chance, BATCH))


def avro_worlds(folder):
    answers = {"7": Answer("AVRO", test_framed.SERP), "8": Answer("AVRO", test_framed.CLICK)}
    answers |= {"9": Answer(refused="is unknown to the registry")}
    clicks = [{"j": n, "i": "12", "a": ("click", "buy", "zoom")[n % 3]} for n in range(4)]
    click = {"t": test_framed.GUID, "n": "71", "at": 1_769_846_400_000, "c": clicks}
    yield from of_bytes(folder, answers, [
        (test_framed.RANKINGS, avro(7, test_framed.SERP, test_framed.serp())),
        (test_framed.CLICKS, avro(8, test_framed.CLICK, click)),
    ])  # fmt: skip


def protobuf_worlds(folder):
    (folder / "shop.desc").write_bytes(test_protobuf.set_of(test_protobuf.SHOP))
    answers = {"7": test_protobuf.answer(), "9": Answer(refused="is unknown to the registry")}
    serp = test_protobuf.serp().SerializeToString()
    click = test_protobuf.click(4).SerializeToString()
    rankings, judgments = test_protobuf.RANKINGS, test_protobuf.JUDGMENTS
    yield from of_bytes(folder, answers, [
        (rankings, serp),
        (judgments, click),
        (test_protobuf.of_registry(rankings), test_protobuf.framed(7, serp)),
        (test_protobuf.of_registry(judgments), test_protobuf.framed(7, click, (5,))),
    ])  # fmt: skip


def otlp_worlds(folder):
    rows = [{"id": "d-2", "score": 0.1}, {"id": "d-1", "score": 0.9}]
    spans = [
        test_otlp.retrieval(1, rows),
        test_otlp.retrieval(2, rows),
        test_otlp.retrieval(3, None),
    ]
    logs = [test_otlp.evaluation(1, 1.0, "d-1"), test_otlp.evaluation(2, 0.5)]
    for encoded in (test_otlp.in_json, test_otlp.in_protobuf):
        of_spans = test_otlp.request_of(spans, (), encoded)
        values = {"rankings": of_spans, "judgments": test_otlp.request_of((), logs, encoded)}
        for log, stage in stages_in(test_otlp.PRESET, {}, folder).items():
            yield log, stage, partial(batch_of, values[log])


def of_bytes(folder, answers, worlds):
    for text, value in worlds:
        ((log, stage),) = stages_in(text, answers, folder).items()
        yield log, stage, partial(batch_of, value)


def batch_of(value, chance):
    return [damaged(chance, value) for _ in range(BATCH)]


WORLDS = {
    "json": json_worlds,
    "avro": avro_worlds,
    "protobuf": protobuf_worlds,
    "otlp": otlp_worlds,
}


@pytest.mark.parametrize("form", WORLDS)
def test_a_damaged_record_gives_messages_is_left_out_or_is_one_dead_letter(form, tmp_path):
    chance, outcomes, n = random.Random(f"mutants {form}"), Counter(), 0
    worlds = list(WORLDS[form](tmp_path))
    while n < N_MUTANTS / 5:
        log, stage, batch = worlds[n // BATCH % len(worlds)]
        values = batch(chance)
        keys = [b'{"session": "k"}'] * BATCH
        headers = [[("x-kind", b"a")]] * BATCH
        records = records_of(*values, log=log, keys=keys, headers=headers, times=[5] * BATCH)
        outcomes += outcomes_of(stage, records, log, values, closes=n // BATCH % 5 == 0)
        n += BATCH
    assert outcomes.keys() >= {"message", "decode"}
    assert outcomes["message"] > n / 100


@pytest.mark.slow(alone=False)
def test_a_replay_counts_each_damaged_record_once(tmp_path):
    chance, outcomes = random.Random("replays"), Counter()
    texts = [textwrap.dedent(text) for text in (*MAPPINGS, *PLANNED)]
    read = [(text, read_document(text, "m.toml").logs) for text in texts]
    of_files = [(text, logs) for text, logs in read if not any(
        each.outside_value() for each in logs.values()
    )]  # fmt: skip
    pairs = zip(*([each for each in of_files if log in each[1]] for log in DECODERS), strict=False)
    for rankings, judgments in pairs:
        (tmp_path / "m.toml").write_text(rankings[0] + judgments[0])
        lines = {}
        for log in DECODERS:
            values = [value.replace(b"\n", b" ") for value in documents(chance, 200)]
            lines[log] = [value for value in values if value.strip()]
            (tmp_path / f"{log}.ndjson").write_bytes(b"".join(b"%s\n" % v for v in lines[log]))
        read_mapping.cache_clear()
        arguments = [f"--source=file://{tmp_path}", f"--mapping={tmp_path / 'm.toml'}", "--force"]
        assert main(["replay", *arguments, f"--out={tmp_path / 'out'}"]) == 0
        totals = json.loads((tmp_path / "out" / "totals.json").read_bytes())
        letters = (tmp_path / "out" / "dead-letters.ndjson").read_bytes().splitlines()
        letters = list(map(json.loads, letters))
        for (log, mapping), ledger in zip(
            (*rankings[1].items(), *judgments[1].items()), totals["ledger"].values(), strict=True
        ):
            n_read = ledger.pop("read")
            assert n_read == sum(ledger.values())
            assert n_read == len(lines[log]) or (mapping.several and n_read > len(lines[log]))
            places = [each["offset"] for each in letters if each["topic"] == log]
            assert len(places) >= ledger["malformed"]
            assert mapping.several or len(places) == len(set(places))
            outcomes += ledger
        assert len(letters) == sum(totals["dead_letters"].values())
    assert min(outcomes[name] for name in ("malformed", "left_out", "orphan")) > 30
    assert outcomes["expired"]


async def lines_of(folder, log):
    source = FileRange(folder, max_bytes={log: MAX_RECORD_BYTES})
    await source.open()
    batches = source.read(log, 0, 0, 1 << 60, max_records=BATCH)
    found = [records async for records in batches]
    await source.close()
    return found


@pytest.mark.slow(alone=False)
def test_a_damaged_archive_is_unusable_or_all_its_lines_are_counted(tmp_path):
    """Damage between lines too: lines that are cut, joined or empty, and compressed bytes."""
    chance, outcomes, n = random.Random("archives"), Counter(), 0
    worlds = [world for world in json_worlds(tmp_path) if world[0] == "judgments"]
    path = tmp_path / "judgments.ndjson"
    while n < N_MUTANTS / 5:
        log, stage, batch = chance.choice(worlds)
        content = b"\n".join(value.replace(b"\n", b" ") for value in batch(chance))
        for _ in range(chance.choice([0, 1, 5])):
            content = damaged(chance, content)
        is_packed = chance.random() < 0.3
        stored = damaged(chance, gzip.compress(content, 1)) if is_packed else content
        there = path.with_suffix(".ndjson.gz") if is_packed else path
        there.write_bytes(stored)
        try:
            found = asyncio.run(lines_of(tmp_path, log))
        except SourceUnusable:
            assert is_packed
            outcomes["unusable"] += 1
            n += 1
            continue
        finally:
            there.unlink()
        lines = content.split(b"\n")
        read = [value for records in found for value in records.values]
        if not is_packed:
            kept = lines if lines[-1] else lines[:-1]
            assert len(read) == len(kept)
            assert all(
                value in (None, line, line.rstrip(b"\r"))
                for value, line in zip(read, kept, strict=True)
            )
        for records in found:
            outcomes += outcomes_of(stage, records, log, list(records.values))
        n += BATCH
    assert outcomes.keys() >= {"message", "decode", "mapping", "unusable"}
