"""Invalid and nearly invalid messages: seeded mutations of valid messages."""

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[\[\]{},:]')

TOKENS = [
    *(b"NaN Infinity -Infinity 1e999 -1e999 -0 -0.0 0 1 1.0 1e0 1E5 1e-400 01 1. .5 +1 -").split(),
    *(b"true false null nul 0x10 1_000 31 31.0 32 31.000000001 1e9 -1 1.5 2e0 5e-324").split(),
    *(b"9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616").split(),
    *(b"9007199254740993 0.1 123456789012345678901234567890 1763690000000 1763699999999").split(),
    b"9" * 308, b"9" * 309, b"9" * 310, b"1" * 400, b"1" * 5000, b"0." + b"3" * 700,
    b"1" + b"0" * 300 + b"e-290", b"17976931348623157" + b"0" * 292, b"1.7976931348623159e308",
    b'""', b'"x"', b'" "', b"[]", b"{}", b"[[]]", b"[1]", b"[1,2]", b"[[1],[2]]", b"[null]",
    b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\ude00\\ud83d"',
    b'"\\ud83d\\ud83d\\ude00"',
    b'"\\ud800abcdefghijkl"', b'"a\\ud83d\\u0041bcdef"', b'"\\u0000"', b'"\\q"', b'"\\u12"',
    b'"\\u00e4\\n\\t\\"\\\\\\/"', '"größer ✈ 𝄞"'.encode(), b'"\xff"', b'"\xed\xa0\x80"',
    b'"\xc3"', b'"\x01"', b'"\x7f"', b'"\n"', b'"' + b"i" * 64 + b'"', b'"' + b"i" * 65 + b'"',
    b'"' + b"i" * 256 + b'"', b'"' + b"i" * 257 + b'"', b'"' + "ä".encode() * 128 + b'"',
    b'"' + "ä".encode() * 129 + b'"', b'"' + "𝄞".encode() * 64 + b'"',
    b'"' + "𝄞".encode() * 65 + b'"', b"[" * 62 + b"]" * 62, b"[" * 63 + b"]" * 63,
    b"[" * 64 + b"]" * 64, b"[" * 70 + b"]" * 70, b'{"a":' * 63 + b"1" + b"}" * 63,
    b'{"a":' * 64 + b"1" + b"}" * 64, b"[" * 3000, b"[1,]", b"[,1]", b"[1 2]", b"[1]]", b"{1:2}",
]  # fmt: skip

NAMES = [
    "schema_version", "trace_id", "node_id", "timestamp_ms", "model", "variant", "query",
    "candidate_ids", "candidates", "scores", "ranks", "scorers", "feature_names", "features",
    "segments", "propensities", "subtopics", "published_ms", "grades", "source", "judgment_id",
    "candidate_kind", "descriptions", "graphs", "type", "text", "nodes", "edges",
    "served", "champion", "challenger", "weights", "bm25", "", "id", "score", "extra", "größe",
    "a.b",
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 31, 32, 1.0, 0.5, -0.0, 1e300, 2**53 + 1, 2**63, 2**64, "", "x",
    "ä" * 130, "i" * 256, "\u0000", "\ud800", [], {}, [1], [1, 2], [0.5, 0.25], [None, None],
    [[1], [2]], [[1, 2], [3]], [[], []], ["a", "b"], ["a", "a"], {"a": 1}, {"a": None}, {"b": "c"},
    {"a": ["s"]}, {"served": [1, 2]}, {"": [1, 2]}, [[[1]], [[2]]], [True, False], ["1", "2"],
    "tool", "graph", [{}, {}], [{"type": "t", "nodes": [1], "edges": None}, {"text": "x"}],
    {"i" * 257: [1, 2]}, {"ä" * 128: [1, 2]}, {"i" * 257: "x"}, {"a": "ä" * 129}, ["i" * 257],
    ["ä" * 128], {"a": ["i" * 257]},
    {f"s{k}": [1, 2] for k in range(9)}, {f"s{k}": [k, 2] for k in range(8)}, [3, 1], [1.0, 2.0],
]  # fmt: skip


def mutant(value: bytes, rng: random.Random) -> bytes:
    """*value* after one to three mutations."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = rng.choice(_MUTATIONS)(value, rng)
    return value


def _flip_byte(value: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(value) + 1)
    odd = rng.choice([bytes([rng.randrange(256)]), *_ODD_BYTES])
    return value[:at] + odd + value[at + rng.randrange(2) :]


def _cut(value: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(value) + 1)
    end = min(len(value), start + rng.randrange(1, 12))
    return rng.choice([value[:start], value[:start] + value[end:], value[:end] + value[start:]])


def _splice_token(value: bytes, rng: random.Random) -> bytes:
    tokens = list(_TOKEN.finditer(value))
    if not tokens:
        return value
    token = rng.choice(tokens)
    other = rng.choice([*TOKENS, rng.choice(tokens)[0]])
    start = rng.choice([token.start(), token.start(), token.end()])
    return value[:start] + other + value[token.end() :]


def _add_whitespace(value: bytes, rng: random.Random) -> bytes:
    tokens = list(_TOKEN.finditer(value))
    for token in sorted(rng.sample(tokens, min(3, len(tokens))), key=lambda t: -t.start()):
        space = rng.choice([b" ", b"\t", b"\r\n", b"\n  ", b"\x0b", b"\xc2\xa0"])
        value = value[: token.start()] + space + value[token.start() :]
    return value


def _escape(value: bytes, rng: random.Random) -> bytes:
    """Writes one character of a string as an escape: mostly the same JSON."""
    strings = [token for token in _TOKEN.finditer(value) if len(token[0]) > 2 and token[0][0] == 34]
    if not strings:
        return value
    token = rng.choice(strings)
    at = rng.randrange(token.start() + 1, token.end() - 1)
    return value[:at] + b"\\u%04x" % value[at] + value[at + 1 :]


def _repeat_member(value: bytes, rng: random.Random) -> bytes:
    member = json.dumps(rng.choice(NAMES)).encode() + b":" + rng.choice(TOKENS)
    openers = [match.end() for match in re.finditer(rb"\{", value)]
    closers = [match.start() for match in re.finditer(rb"\}", value)]
    if openers and rng.random() < 0.5:
        at = rng.choice(openers)
        return value[:at] + member + b"," + value[at:]
    if not closers:
        return value
    at = rng.choice([closers[-1], rng.choice(closers)])
    return value[:at] + b"," + member + value[at:]


def _edit_tree(value: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(value)
    except (ValueError, RecursionError):
        return value
    for _ in range(rng.choice([1, 1, 2])):
        tree = _edited(tree, rng)
    try:
        return json.dumps(
            tree,
            ensure_ascii=rng.random() < 0.5,
            separators=rng.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]),
        ).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # for an integer too long to print, or a deep tree
        return value


def _edited(tree: Any, rng: random.Random) -> Any:
    """The tree with one node replaced, removed, duplicated, wrapped, renamed or added."""
    if isinstance(tree, (dict, list)) and tree and rng.random() < 0.75:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        edit = rng.randrange(8)
        if edit == 0:
            del tree[key]
        elif edit == 1 and isinstance(tree, list):
            tree.insert(key, tree[key])
        elif edit == 1:
            tree[rng.choice(NAMES)] = tree[key]
        elif edit == 2 and isinstance(tree, dict):
            tree[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
        else:
            tree[key] = _edited(tree[key], rng)
        return tree
    return copy.deepcopy(rng.choice([*VALUES, [tree], {"a": tree}]))


_ODD_BYTES = [*(bytes([c]) for c in b'"\\[]{},:eE.-+019 \t\r\n'), b"\xef\xbb\xbf", b"\x00", b"\xff"]
_MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    _flip_byte, _cut, _splice_token, _splice_token, _splice_token, _add_whitespace, _escape,
    _repeat_member, _edit_tree, _edit_tree,
]  # fmt: skip
