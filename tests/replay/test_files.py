"""Logs as files: the rules of the file source, one by one."""

import bz2
import gzip
import os
import subprocess
import sys
from functools import cache

import cramjam
import pytest

from evaluator.adapters.files import FileRange, streams
from evaluator.adapters.files.logs import find_logs
from evaluator.adapters.files.streams import MAX_KEPT_LINE_BYTES, Lines
from evaluator.ports import UNKNOWN_END, SourceAmbiguous, SourceUnusable
from evaluator.wire.records import KEPT_BYTES
from tests.repeats import first_quick

ENCODINGS = {
    "": lambda text: text,
    ".gz": lambda text: gzip.compress(text, mtime=0),
    ".zst": lambda text: bytes(cramjam.zstd.compress(text)),
}


async def batches(directory, log="rankings", partition=0, start=0, end=UNKNOWN_END, size=5000):
    source = FileRange(directory)
    await source.open()
    try:
        return [
            records async for records in source.read(log, partition, start, end, max_records=size)
        ]
    finally:
        await source.close()


async def values(directory, **options):
    return [value for records in await batches(directory, **options) for value in records.values]


@pytest.fixture
def write(tmp_path):
    def writer(name, content=b""):
        (tmp_path / name).write_bytes(content)
        return tmp_path

    return writer


# --- lines -------------------------------------------------------------------------------------


async def test_a_line_is_a_record_and_its_number_the_offset(write):
    [records] = await batches(write("rankings.ndjson", b"a\nb\nc\n"))
    assert (records.log, records.partition) == ("rankings", 0)
    assert (records.offsets.tolist(), list(records.values)) == ([0, 1, 2], [b"a", b"b", b"c"])
    assert records.next_offset == 3


async def test_lines_carry_no_keys_and_no_record_timestamps(write):
    [records] = await batches(write("rankings.ndjson", b"a\nb\n"))
    assert list(records.keys) == [None, None]
    assert records.timestamps_ms is None


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\r\r\nb\r", [b"a\r", b"b"]),
        (b"\r\n\r", [b"", b""]),
        (b"a\rb\x0bc\x0cd\xc2\x85e\xe2\x80\xa8f\n", [b"a\rb\x0bc\x0cd\xc2\x85e\xe2\x80\xa8f"]),
        (b"\xef\xbb\xbf{}\n", [b"\xef\xbb\xbf{}"]),
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_line_ends_with_a_newline_and_one_optional_carriage_return(
    write, text, lines, encoding
):
    directory = write(f"rankings.ndjson{encoding}", ENCODINGS[encoding](text))
    assert await values(directory) == lines


@pytest.mark.parametrize("block", [1, 2, 3, 7])
async def test_block_boundaries_do_not_matter(write, monkeypatch, block):
    monkeypatch.setattr(streams, "BLOCK_BYTES", block)
    text = b"first\r\n\nthird line\r\r\n" + b"x" * 20 + b"\nend"
    directory = write("rankings.ndjson", text)
    assert await values(directory) == [b"first", b"", b"third line\r", b"x" * 20, b"end"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_batch_has_at_most_the_requested_records(write, size):
    found = await batches(write("rankings.ndjson", b"a\nb\nc\nd\ne\n"), size=size)
    assert [len(records) for records in found] == {
        1: [1] * 5,
        2: [2, 2, 1],
        3: [3, 2],
        100: [5],
    }[size]
    assert [offset for records in found for offset in records.offsets] == [0, 1, 2, 3, 4]


async def test_a_batch_of_long_lines_ends_early(write, monkeypatch):
    monkeypatch.setattr(streams, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 50)
    found = await batches(write("rankings.ndjson", (b"x" * 39 + b"\n") * 10))
    assert len(found) > 1
    assert all(sum(map(len, records.values)) <= 150 for records in found)
    assert sum(len(records) for records in found) == 10


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_part_of_a_log_keeps_its_offsets(write, size):
    found = await batches(write("rankings.ndjson", b"a\nb\nc\nd\ne\n"), start=1, end=4, size=size)
    assert [offset for records in found for offset in records.offsets] == [1, 2, 3]
    assert [value for records in found for value in records.values] == [b"b", b"c", b"d"]
    assert found[-1].next_offset == 4


# --- long lines --------------------------------------------------------------------------------


def test_a_long_line_is_cut_to_its_beginning_for_any_blocks(subtests):
    for length in range(8, 16):
        for ending in [b"\n", b"\r\n", b""]:
            for block in [1, 4, 64]:
                with subtests.test(length=length, ending=ending, block=block):
                    text = b"before\n" + b"x" * length + ending
                    if ending:
                        text += b"after\n"
                    lines = Lines(max_line_bytes=10)
                    found = [
                        line
                        for start in range(0, len(text), block)
                        for line in lines.feed(text[start : start + block])
                    ]
                    found += lines.finish()
                    kept = b"x" * min(length, 10)
                    assert found == [b"before", kept, b"after"] if ending else [b"before", kept]


def test_a_carriage_return_within_a_long_line_does_not_end_it():
    lines = Lines(max_line_bytes=3)
    assert lines.feed(b"abc\rdef\n") == [b"abc"]
    assert lines.feed(b"ab\rdef\n") == [b"ab\r"]


@pytest.mark.slow
def test_a_line_of_half_a_gigabyte_is_read_in_bounded_memory(tmp_path):
    with (tmp_path / "rankings.ndjson").open("wb") as file:
        file.truncate(1 << 29)  # zeros, none of them a newline
    program = (
        "import asyncio, resource, sys\n"
        "from pathlib import Path\n"
        "from evaluator.adapters.files import FileRange\n"
        "async def main():\n"
        "    source = FileRange(Path(sys.argv[1]))\n"
        "    await source.open()\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    [records] = [r async for r in source.read("
        "'rankings', 0, 0, 2**63 - 1, max_records=5000)]\n"
        "    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    print(len(records.values[0]), after - before)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    kept_bytes, growth_kib = map(int, done.stdout.split())
    assert kept_bytes == KEPT_BYTES
    assert growth_kib < 5 * MAX_KEPT_LINE_BYTES / 1024


# --- which file is which -----------------------------------------------------------------------


async def test_one_file_without_a_number_is_partition_0(write):
    directory = write("rankings.ndjson", b"a\n")
    assert await FileRange(directory).open() == 1
    assert await values(directory, partition=0) == [b"a"]


async def test_numbered_files_are_partitions(write):
    write("rankings-0.ndjson", b"a\n")
    write("rankings-1.ndjson.gz", ENCODINGS[".gz"](b"b\n"))
    directory = write("judgments-10.ndjson.zst", ENCODINGS[".zst"](b"c\n"))
    assert await FileRange(directory).open() == 11
    assert await values(directory, partition=1) == [b"b"]
    assert await values(directory, log="judgments", partition=10) == [b"c"]


async def test_a_missing_file_of_a_pair_is_an_empty_log(write):
    directory = write("judgments.ndjson", b"a\n")
    source = FileRange(directory)
    assert await source.open() == 1
    assert await source.bounds("rankings", 0) == (0, 0)
    assert await values(directory) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_an_empty_log_is_no_batch(write, encoding):
    directory = write(f"rankings.ndjson{encoding}", ENCODINGS[encoding](b""))
    assert await batches(directory) == []


def test_other_files_are_ignored(write):
    for name in ("notes.txt", "rankings.ndjson.bak", "xrankings.ndjson", "rankings.json"):
        write(name)
    directory = write("rankings.ndjson")
    assert list(find_logs(directory)) == [("rankings", 0)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rankings.ndjson", "rankings-0.ndjson"),
        ("rankings.ndjson", "rankings.ndjson.gz"),
        ("judgments-3.ndjson.gz", "judgments-3.ndjson.zst"),
        ("judgments.ndjson.zst", "judgments-0.ndjson"),
    ],
)
def test_two_files_for_one_log_are_refused_and_both_named(write, one, other):
    write(one)
    directory = write(other)
    with pytest.raises(SourceAmbiguous) as raised:
        find_logs(directory)
    assert one in str(raised.value)
    assert other in str(raised.value)


@pytest.mark.parametrize("name", ["rankings-01.ndjson", "judgments-99999.ndjson"])
def test_a_number_that_names_no_partition_is_refused(write, name):
    with pytest.raises(SourceUnusable, match=name):
        find_logs(write(name))


def test_a_directory_without_logs_is_refused(write):
    with pytest.raises(SourceUnusable, match=r"contains no log.*rankings\.ndjson"):
        find_logs(write("readme.txt"))


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(SourceUnusable, match="cannot be read"):
        find_logs(tmp_path / "nowhere")


async def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "rankings.ndjson").mkdir()
    with pytest.raises(SourceUnusable, match="is not a file"):
        await FileRange(tmp_path).open()


async def test_lines_appended_after_open_are_not_read(write):
    directory = write("rankings.ndjson", b"a\nb\n")
    source = FileRange(directory)
    await source.open()
    with (directory / "rankings.ndjson").open("ab") as file:
        file.write(b"c\n")
    reading = source.read("rankings", 0, 0, UNKNOWN_END, max_records=10)
    assert [value async for records in reading for value in records.values] == [b"a", b"b"]


# --- compressed streams ------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [".gz", ".zst"])
async def test_concatenated_streams_are_one_file(write, encoding):
    compress = ENCODINGS[encoding]
    content = compress(b"a\nb") + compress(b"c\n") + compress(b"") + compress(b"d\n")
    assert await values(write(f"rankings.ndjson{encoding}", content)) == [b"a", b"bc", b"d"]


BIG = b"".join(
    b'{"n": %d, "noise": "%s"}\n' % (n, os.urandom(40).hex().encode()) for n in range(20000)
)


@cache
def encoded(encoding):
    return ENCODINGS[encoding](BIG)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_file_of_many_blocks_is_read_completely(write, encoding):
    directory = write(f"rankings.ndjson{encoding}", encoded(encoding))
    assert await values(directory) == BIG.splitlines()


@pytest.mark.parametrize("encoding", [".gz", ".zst"])
@pytest.mark.parametrize("damage", first_quick("cut off", "empty", "no stream", "garbage behind"))
async def test_a_damaged_stream_is_refused_with_file_and_place(write, encoding, damage):
    whole = encoded(encoding)
    content = {
        "cut off": whole[: len(whole) // 2],
        "empty": b"",
        "no stream": b"no " + BIG,
        "garbage behind": whole + b"garbage",
    }[damage]
    directory = write(f"rankings.ndjson{encoding}", content)
    what = rf"rankings\.ndjson\{encoding} is damaged near byte .* copy it again, or create it"
    with pytest.raises(SourceUnusable, match=what):
        await values(directory)


@pytest.mark.parametrize(
    ("encoding", "named", "error"),
    [
        (
            "",
            ".gz",
            r"is not compressed, .* has gzip data. Rename it to .*/rankings\.ndjson\.",
        ),
        (
            ".gz",
            "",
            r"has gzip data, .* not compressed. Rename it to .*/rankings.ndjson\.gz\.",
        ),
        (
            ".zst",
            ".gz",
            r"has zstd data, .* gzip data. Rename it to .*/rankings\.ndjson\.zst\.",
        ),
        (".gz", ".zst", r"has gzip data, .* has zstd data. Rename it to .*/rankings\.ndjson\.gz\."),
    ],
)
async def test_a_file_with_another_compression_than_its_name_is_refused(
    write, encoding, named, error
):
    directory = write(f"rankings.ndjson{named}", ENCODINGS[encoding](b'{"trace_id": "t"}\n'))
    with pytest.raises(SourceUnusable, match=error):
        await values(directory)


async def test_an_unsupported_compression_is_named(write):
    directory = write("rankings.ndjson.gz", bz2.compress(BIG[:1_000]))
    with pytest.raises(SourceUnusable, match=r"bzip2 data.* Compress it with gzip or zstd instead"):
        await values(directory)


async def test_a_flipped_bit_in_gzip_is_found(write):
    content = bytearray(encoded(".gz"))
    content[-6] ^= 1  # in the checksum at the end
    with pytest.raises(SourceUnusable, match="damaged"):
        await values(write("rankings.ndjson.gz", bytes(content)))


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_reading_can_be_stopped_early(write, encoding):
    directory = write(f"rankings.ndjson{encoding}", encoded(encoding))
    source = FileRange(directory)
    await source.open()
    reading = source.read("rankings", 0, 0, UNKNOWN_END, max_records=10)
    first = await anext(reading)
    assert list(first.values) == BIG.splitlines()[:10]
    await source.close()
    await source.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_progress_in_bytes_ends_at_the_size_of_the_files(write, encoding):
    source = FileRange(write(f"rankings.ndjson{encoding}", encoded(encoding)))
    await source.open()
    assert source.bytes_read == 0
    async for _ in source.read("rankings", 0, 0, UNKNOWN_END, max_records=5000):
        assert source.bytes_read <= source.size_bytes([("rankings", 0)])
    assert source.bytes_read == source.size_bytes([("rankings", 0)]) == len(encoded(encoding))
