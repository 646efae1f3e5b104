"""Protobuf schemas as text, which protoc compiles within limits."""

from base64 import b64decode

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from evaluator.adapters.registry import protoc
from evaluator.adapters.registry.protoc import NotCompiled, ProtocUnavailable, descriptors

pytestmark = pytest.mark.slow  # a process a test

HIT = 'syntax = "proto3"; package shop; message Hit { int64 sku = 1; }'
SERP = (
    'syntax = "proto3"; package shop; import "a/hit.proto"; '
    'import "google/protobuf/timestamp.proto"; '
    "message Serp { string session = 1; google.protobuf.Timestamp at = 2; repeated Hit hits = 3; }"
)


def test_a_file_is_compiled_with_its_imports_in_dependency_order():
    *imports, (name, last) = descriptors(SERP, [("a/hit.proto", HIT), ("unused.proto", HIT)])
    assert [each for each, _ in imports] == ["a/hit.proto", "google/protobuf/timestamp.proto"]
    file = FileDescriptorProto.FromString(b64decode(last))
    assert (name, file.package, file.message_type[0].name) == ("schema.proto", "shop", "Serp")
    types = [field.type_name for field in file.message_type[0].field]
    assert types == ["", ".google.protobuf.Timestamp", ".shop.Hit"]


def test_an_import_may_have_the_name_of_the_file_or_of_a_module_of_python():
    imports = [("schema.proto", HIT), ("resource.py", "raise SystemExit(9)")]
    text = 'syntax = "proto3"; import "schema.proto"; message A { shop.Hit hit = 1; }'
    assert [name for name, _ in descriptors(text, imports)] == ["schema.proto", "_schema.proto"]


@pytest.mark.parametrize(
    ("text", "imports", "reason"),
    [
        ("message", (), "is refused by protoc: schema.proto:1:8: Expected message name."),
        (SERP, (), "is refused by protoc: a/hit.proto: File not found."),
        ("message A {" * 999, (), r"is refused by protoc: schema.proto:1:\d+: Reached maximum"),
        ('syntax = "proto3"; message A { B b = 1; }', (), '"B" is not defined'),
        ("\0", (), "Invalid control characters"),
        ('import "\033[2Jx";', (), r"protoc: [^\x1b]+2Jx: File not found"),
        (HIT, [("../a.proto", HIT)], r"the name '../a.proto', which is not a plain path"),
        (HIT, [("/a.proto", HIT)], "not a plain path"),
        (HIT, [("a//b.proto", HIT)], "not a plain path"),
        (HIT, [("a\n.proto", HIT)], "not a plain path"),
        (HIT, [("a", HIT), ("a/b", HIT)], "has an import a/b below another import"),
        (HIT, [("a/b", HIT), ("a", HIT)], "has an import a below another import"),
    ],
)
def test_an_invalid_protobuf_file_is_refused_with_the_reason(text, imports, reason):
    with pytest.raises(NotCompiled, match=reason) as refused:
        descriptors(text, imports)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("replaced", "by", "error", "reason"),
    [
        ("RLIMIT_FSIZE, (4194304, 4194304)", "RLIMIT_FSIZE, (9, 9)", NotCompiled, "is refused by"),
        ("types =", "while True: pass\ntypes =", NotCompiled, "needs more than 1 s or 1024 MiB"),
        ("types =", "bytes(2 << 30)\ntypes =", ProtocUnavailable, "ended with 1: MemoryError"),
        ("types =", "os.kill(os.getpid(), 9)\ntypes =", ProtocUnavailable, "ended with -9"),
        (
            "types =",
            "sys.exit(sys.stderr.write('out: No space left on device') and 3)\ntypes =",
            ProtocUnavailable,
            "ended with 3: out: No space left",
        ),
    ],
)
def test_a_process_has_limits_and_is_retried_if_it_was_killed(
    replaced, by, error, reason, monkeypatch
):
    a_second = protoc._PROGRAM.replace("RLIMIT_CPU, (2, 3)", "RLIMIT_CPU, (1, 2)")
    assert a_second != protoc._PROGRAM
    assert a_second.count(replaced) == 1
    monkeypatch.setattr(protoc, "CPU_SECONDS", 1)
    monkeypatch.setattr(protoc, "_PROGRAM", f"import os\n{a_second.replace(replaced, by)}")
    with pytest.raises(error, match=reason):
        descriptors(HIT, ())


def test_a_missing_temporary_directory_is_retried(monkeypatch, tmp_path):
    monkeypatch.setattr(protoc.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ProtocUnavailable, match="No such file or directory"):
        descriptors(HIT, ())


def test_without_the_package_the_error_has_the_remedy(monkeypatch):
    monkeypatch.setattr(protoc, "find_spec", lambda name: None)
    with pytest.raises(ProtocUnavailable, match=r"pip install '\.\[protobuf\]'"):
        descriptors(HIT, ())
