"""The same worlds through the real decoder: malformed records, and the results of the engine."""

from collections.abc import Sequence
from random import Random

import pytest

from evaluator.core.types.records import JudgmentColumns, RankingColumns
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from tests.oracle.checks import read_checking_every_prefix
from tests.oracle.columns import raw_records
from tests.oracle.messages import (
    JudgmentsRecord,
    RankingsRecord,
    Raw,
    read_judgments,
    read_rankings,
)
from tests.oracle.refusals import by_the_models
from tests.oracle.run import Reader
from tests.oracle.worlds import seeded_world
from tests.repeats import repeated, sized

N_WORLDS = sized(64, quick=32)
FIRST_SEED = 1_000_000


class DecodingReader(Reader):
    """The same through the real decoder."""

    def ranking_batch(
        self, records: Sequence[RankingsRecord], raws: Sequence[Raw], next_offset: int
    ) -> RankingColumns:
        return decode_rankings(
            raw_records("rankings", raws, next_offset),
            max_future_skew_ms=self.world.max_future_skew_ms,
            segments=self.world.settings.segments,
        )

    def judgment_batch(
        self, records: Sequence[JudgmentsRecord], raws: Sequence[Raw], next_offset: int
    ) -> JudgmentColumns:
        return decode_judgments(
            raw_records("judgments", raws, next_offset),
            max_future_skew_ms=self.world.max_future_skew_ms,
        )


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_the_law_holds_through_the_decoder(part):
    for seed in range(FIRST_SEED + part, FIRST_SEED + N_WORLDS, 8):
        world = seeded_world(seed)
        run = read_checking_every_prefix(world, Random(seed), reads=DecodingReader)
        letters = {(x.log, x.offset): (x.key, x.value) for x in run.dead_letters}
        raws = {("rankings", raw.offset): raw for raw in world.rankings}
        raws |= {("judgments", raw.offset): raw for raw in world.judgments}
        assert letters == {key: (raws[key].key, raws[key].value or b"") for key in letters}, seed


def test_the_models_refuse_exactly_the_malformed_records_of_a_world():
    for seed in range(FIRST_SEED, FIRST_SEED + N_WORLDS):
        world = seeded_world(seed)
        refusals = by_the_models("rankings", world.max_future_skew_ms)
        assert read_rankings(world.rankings, refusals) == world.read_rankings(), seed
        refusals = by_the_models("judgments", world.max_future_skew_ms)
        assert read_judgments(world.judgments, refusals) == world.read_judgments(), seed
