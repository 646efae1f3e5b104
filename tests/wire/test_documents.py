"""The page of messages and the schemas agree with the code."""

import ast
import json
import re
from pathlib import Path

import pytest

from evaluator.core.measures import MeasureSet
from evaluator.wire.outputs.encoding import (
    dead_letter_row,
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_windows,
)
from evaluator.wire.outputs.output_models import (
    DeadLetterHeaders,
    Evaluation,
    OutputModel,
    Reason,
    Settled,
    WatermarkRecord,
    Window,
)
from evaluator.wire.outputs.schemas import schemas
from scripts.write_schemas import rendered
from tests.engines import engine_of
from tests.wire.messages import (
    NOW_MS,
    judgment,
    judgments_of,
    ranking,
    rankings_of,
    refusal,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messages.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
OUTPUTS = {
    "Evaluation": Evaluation,
    "Settled": Settled,
    "Watermark record": WatermarkRecord,
    "Window": Window,
    "Dead letter": DeadLetterHeaders,
}


class DeadLetterRow(OutputModel):
    """A row of dead-letters.ndjson without headers; bytes are in base64."""

    topic: str
    partition: int
    offset: int
    reason: Reason
    detail: str
    key: str | None
    value: str
    truncated: int | None = None


def examples(section):
    return re.findall(r"^```json\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


def rows(section, n_columns):
    """The rows of every table of so many columns, with `code` unquoted."""
    for line in SECTIONS[section].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == n_columns:
            yield [re.sub(r"^`(.*)`$", r"\1", cell) for cell in cells]


@pytest.mark.parametrize("text", examples("Ranking"))
def test_examples_of_rankings_are_accepted(text):
    assert len(rankings_of(text.encode())) == 1


@pytest.mark.parametrize("text", examples("Judgment"))
def test_examples_of_judgments_are_accepted(text):
    assert len(judgments_of(text.encode(), timestamps_ms=2 * NOW_MS)) == 1


MALFORMED_MEMBERS = [row for row in rows("Malformed", 4) if row[0] in ("ranking", "judgment")]
MALFORMED_VALUES = [row for row in rows("Malformed", 3) if row[0].startswith("b'")]


def test_the_tables_of_malformed_messages_are_found():
    assert len(MALFORMED_MEMBERS) > 25
    assert len(MALFORMED_VALUES) > 9


@pytest.mark.parametrize(("kind", "members", "reason", "detail"), MALFORMED_MEMBERS)
def test_malformed_members_are_refused_as_documented(kind, members, reason, detail):
    plain = json.dumps(ranking() if kind == "ranking" else judgment())
    value = f"{plain[:-1]}, {members[1:]}".encode()  # the last of a repeated member counts
    decode = rankings_of if kind == "ranking" else judgments_of
    assert refusal(decode(value)) == (reason, detail)


@pytest.mark.parametrize(("value", "reason", "detail"), MALFORMED_VALUES)
def test_malformed_values_are_refused_as_documented(value, reason, detail):
    literal, _, times = value.partition(" * ")
    raw = ast.literal_eval(literal) * int(times or 1)
    assert refusal(rankings_of(raw)) == (reason, detail)


@pytest.mark.parametrize("section", OUTPUTS)
def test_examples_of_outputs_match_their_models(section):
    texts = examples(section)
    assert texts
    for text in texts:
        OUTPUTS[section].model_validate_json(text)


def test_real_outputs_match_their_models():
    measures = MeasureSet.parse(["top1", "ndcg@10"])
    engine = engine_of(
        measures,
        retention_ms=1000,
        maturity_ms=500,
        early_ms=0,
        remember_ms=0,
        out_of_orderness_ms=0,
        window_ms=1000,
        empty="zero",
    )
    outputs = engine.receive(
        rankings_of(
            ranking(scorers={"bm25": [0.9, 1.1]}),
            ranking(node_id="2", scores=..., ranks=[2, 1]),
            ranking(node_id="3", timestamp_ms=NOW_MS + 100_000),
            b"{}",
        ),
        judgments_of(
            judgment(),
            judgment(node_id="2", grades={"weather": 0.5, "other": None}),
            judgment(timestamp_ms=NOW_MS + 100_000),
        ),
    )
    evaluations = encode_evaluations(outputs.evaluations, measures, emit_query=True)
    settled = encode_settled(outputs.settled, measures, task=0, maturity_ms=500)
    windows = encode_windows(outputs.windows, measures, window_ms=1000, task=0)
    topics = {"rankings": "rankings", "judgments": "judgments"}
    letters = encode_dead_letters(outputs.dead_letters, topics, partition=0)
    for model, written in ((Evaluation, evaluations), (Settled, settled), (Window, windows)):
        assert written
        for record in written:
            model.model_validate_json(record.value)
    assert letters
    for letter in letters:
        DeadLetterHeaders.model_validate({name: text.decode() for name, text in letter.headers})
    for dead in outputs.dead_letters:
        DeadLetterRow.model_validate(dead_letter_row(dead, "rankings", partition=0))


def test_schema_files_are_up_to_date():
    written = {path.name: path.read_text("utf-8") for path in (ROOT / "schemas").glob("*.json")}
    assert written == rendered(), "run: python -m scripts.write_schemas"


@pytest.mark.slow(alone=False)
def test_every_reference_of_the_asyncapi_document_resolves():
    document = schemas()["asyncapi"]
    references = re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))
    assert references
    for reference in references:
        if reference.startswith("./"):
            assert reference.removeprefix("./") in rendered()
            continue
        node = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
