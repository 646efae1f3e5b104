"""Names and limits that the compiled part repeats are those of Python."""

import re

from evaluator.core.measures import MAX_GRADE
from evaluator.core.types.records import MAX_SEGMENTS
from evaluator.mapping import protobuf_types
from evaluator.wire import reading, records
from evaluator.wire.messages import limits
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.outputs import watched_decoder
from tests.tidy.tree import ROOT

HEADERS = {p.name: p.read_text() for p in (ROOT / "evaluator/wire/native").glob("*.h")}
LESS = {"MAX_NESTING": 4}  # the compiled part counts more simply


def names_in(header: str, array: str) -> set[str]:
    body = re.search(rf"{array}\[[^\]]*\] = \{{(.*?)\}};", HEADERS[header], re.DOTALL)
    assert body
    return set(re.findall(r'NAME\("(\w+)"\)', body[1]))


def test_members_and_reserved_names_of_the_compiled_decoders():
    assert names_in("rankings.h", "ranking_names") == set(Ranking.model_fields)
    assert names_in("judgments.h", "judgment_names") == set(Judgment.model_fields)
    assert names_in("rankings.h", "reserved") == limits.RESERVED_RANKERS


def test_limits_of_the_compiled_part():
    own = {"MAX_GRADE": MAX_GRADE, "MAX_SEGMENTS": MAX_SEGMENTS}
    own["MAX_WATCHED"] = watched_decoder._MAX_WATCHED
    found = re.findall(r"\b(MAX_\w+) = (\d+)", "".join(HEADERS.values()))
    for name, number in found:
        homes = [m for m in (limits, records, reading, protobuf_types) if hasattr(m, name)]
        if name != "MAX_HEADERS_BYTES":
            wanted = own[name] if name in own else getattr(homes[0], name)
            assert int(number) == wanted - LESS.get(name, 0), name
