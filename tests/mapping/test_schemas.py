"""The recorded answers: the first answer for an id counts, and is written before it is used."""

import pytest

from evaluator.mapping import schemas as room
from evaluator.mapping.schemas import Answer, Schemas, merged
from evaluator.ports import (
    RegistryUnavailable,
    RequestRefused,
    SourceUnavailable,
    SourceUnusable,
)
from tests.mapping.test_stage import records_of


class Log:
    """One log for several processes; `late` are written by another one just before ours."""

    def __init__(self):
        self.rows, self.late, self.events = [], [], []
        self.unavailable = False

    def of(self):
        return _LogOf(self)


class _LogOf:
    def __init__(self, log):
        self._log, self._position = log, 0

    async def read(self):
        self._log.events.append("read")
        rows = self._log.rows[self._position :]
        self._position += len(rows)
        return rows

    async def append(self, answers):
        if self._log.unavailable:
            raise SourceUnavailable("no broker")
        self._log.rows += self._log.late
        self._log.late = []
        self._log.rows += answers.items()
        self._log.events.append(sorted(answers))


class Registry:
    url = "http://registry"

    def __init__(self, **answers):
        self.answers = {name.removeprefix("s"): answer for name, answer in answers.items()}
        self.asked = []

    async def answer(self, schema_id):
        self.asked.append(schema_id)
        answer = self.answers.get(schema_id)
        if answer is None:
            raise RegistryUnavailable(f"{schema_id} is not answered")
        return answer


A, B = Answer("AVRO", '"int"'), Answer("AVRO", '"long"')
UNKNOWN = Answer(refused="is unknown to the registry")


def framed(*numbers):
    return [records_of(*(b"\x00" + number.to_bytes(4, "big") + b"x" for number in numbers))]


async def test_an_answer_is_recorded_before_it_is_used():
    log, registry = Log(), Registry(s1=A, s2=UNKNOWN)
    schemas = Schemas(registry, log.of())
    await schemas.prepare(framed(2, 1, 2))
    assert schemas.answers == {"1": A, "2": UNKNOWN}
    assert log.rows == [("1", A), ("2", UNKNOWN)]
    assert log.events[-2:] == [["1", "2"], "read"]
    await schemas.prepare(framed(1, 2))
    assert registry.asked == ["1", "2"]


async def test_without_an_acknowledgement_no_answer_is_used():
    log = Log()
    log.unavailable = True
    schemas = Schemas(Registry(s1=A), log.of())
    with pytest.raises(SourceUnavailable, match="no broker"):
        await schemas.prepare(framed(1))
    assert schemas.answers == {}


async def test_the_first_answer_of_any_process_is_used_permanently():
    log = Log()
    log.late = [("1", UNKNOWN)]
    schemas = Schemas(Registry(s1=A), log.of())
    await schemas.prepare(framed(1))
    assert log.rows == [("1", UNKNOWN), ("1", A)]
    assert schemas.answers == {"1": UNKNOWN}
    later = Schemas(Registry(), log.of())  # which need not ask
    await later.prepare(framed(1))
    assert later.answers == {"1": UNKNOWN}


async def test_answers_written_by_another_process_are_not_requested_again():
    log, registry = Log(), Registry()
    schemas = Schemas(registry, log.of())
    await schemas.prepare([])
    log.rows.append(("1", A))
    await schemas.prepare(framed(1))
    assert (schemas.answers, registry.asked) == ({"1": A}, [])


async def test_answers_are_kept_if_other_requests_fail():
    log, registry = Log(), Registry(s1=A)
    schemas = Schemas(registry, log.of())
    with pytest.raises(RegistryUnavailable, match="2 is not answered"):
        await schemas.prepare(framed(1, 2))
    assert (schemas.answers, log.rows) == ({"1": A}, [("1", A)])
    registry.answers["2"] = B
    await schemas.prepare(framed(1, 2))
    assert registry.asked == ["1", "2", "2"]


async def test_a_slow_registry_is_unavailable_and_progress_is_kept(monkeypatch):
    monkeypatch.setattr(room, "ASKING_SECONDS", -1.0)
    schemas = Schemas(Registry(s1=A), None)
    with pytest.raises(RegistryUnavailable, match="is slow: 1 schemas"):
        await schemas.prepare(framed(1))


async def test_a_replay_does_not_write():
    log = Log()
    log.rows.append(("1", UNKNOWN))
    schemas = Schemas(Registry(s1=A, s2=B), log.of(), writes=False)
    await schemas.prepare(framed(1, 2))
    assert (schemas.answers, log.rows) == ({"1": UNKNOWN, "2": B}, [("1", UNKNOWN)])


async def test_answers_have_limits_that_do_not_depend_on_the_process(monkeypatch):
    monkeypatch.setattr(room, "MAX_SCHEMAS", 2)
    log, registry = Log(), Registry(s1=A, s2=A, s3=A, s4=A)
    schemas = Schemas(registry, log.of())
    for number in (3, 1, 2, 4):
        await schemas.prepare(framed(number))
    assert (list(schemas.answers), schemas.is_full) == (["3", "1"], True)
    assert registry.asked == ["3", "1", "2"]  # 4 is not asked for
    later = Schemas(registry, log.of())
    await later.prepare(framed(2))
    assert list(later.answers) == ["3", "1"]
    monkeypatch.setattr(room, "MAX_SCHEMAS", 10)
    monkeypatch.setattr(room, "MAX_TOTAL_BYTES", 2 * A.size_bytes)
    in_bytes = Schemas(registry, log.of())
    await in_bytes.prepare(framed(2))
    assert list(in_bytes.answers) == ["3", "1"]


async def test_a_replay_repeats_the_answers_of_an_earlier_one():
    log = Log()
    log.rows.append(("9", B))
    first = Schemas(Registry(s1=A, s2=UNKNOWN), log.of(), writes=False)
    await first.prepare(framed(1, 2))
    document = first.saved()
    assert b'"9"' not in document  # not used
    second = Schemas(Registry(), None, writes=False)
    second.adopt_saved(document, "schemas.json")
    await second.prepare(framed(2, 1))
    assert second.saved() == document
    with pytest.raises(SourceUnusable, match=r"x\.json is not the schemas\.json"):
        second.adopt_saved(b"{}", "x.json")
    third = Schemas(Registry(), None, writes=False)
    third.adopt_saved(document.replace(b"http://registry", b"http://other"), "schemas.json")
    assert third.answers == {}


async def test_answers_of_several_replays_are_merged_unless_they_differ():
    documents = {}
    for name, answers in (("a", {"s1": A, "s2": B}), ("b", {"s2": B, "s3": A}), ("c", {"s1": B})):
        schemas = Schemas(Registry(**answers), None, writes=False)
        await schemas.prepare(framed(*(int(each[1:]) for each in answers)))
        documents[name] = schemas.saved()
    both = {name: documents[name] for name in ("a", "b")}
    whole = Schemas(Registry(s1=A, s2=B, s3=A), None, writes=False)
    await whole.prepare(framed(1, 2, 3))
    assert merged(both) == whole.saved()
    with pytest.raises(RequestRefused, match="c and the others have different answers"):
        merged(documents)
