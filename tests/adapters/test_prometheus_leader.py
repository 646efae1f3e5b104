"""The series of the leader, as functions of its view."""

from msgspec.structs import replace

from evaluator.adapters.prometheus import EvaluatorCollector
from evaluator.core.alarms.alarm import Carrier
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.events import Version
from evaluator.core.online.views import LeaderView
from evaluator.core.types.records import OTHER, SERVED
from evaluator.exposition.snapshot import Snapshot
from tests.adapters.synthetic import NOW_MS, learned, one_task, quality
from tests.adapters.test_prometheus import samples, scrape, value_of

RANKER = learned().models[0]


def shown(view):
    return scrape(Snapshot(), leader=view)


def test_there_are_no_learning_series_without_learning():
    names = {metric.name for metric in scrape(Snapshot())}
    assert not [name for name in names if "leader" in name or "learning" in name]


def test_a_process_that_is_not_the_leader_exports_only_its_own_counters():
    counts = {("leader_epochs",): 0, ("gaps",): 0, ("records", "query"): 0}
    found = samples(shown(LeaderView(n_tasks=2, counts=counts)))
    exported = {path[0] for path in found if "leader" in path[0] or "weights" in path[0]}
    assert exported == {
        "evaluator_leader_active",
        "evaluator_leader_epochs_total",
        "evaluator_leader_gaps_total",
        "evaluator_leader_records_total",
    }


def test_the_leader_exports_its_progress_and_awaited_tasks():
    found = shown(learned())
    assert value_of(found, "evaluator_leader_active") == 1
    assert value_of(found, "evaluator_leader_epochs_total") == 2
    assert value_of(found, "evaluator_leader_records_total", outcome="foreign") == 1
    assert value_of(found, "evaluator_leader_awaited", task="0") == 0
    assert value_of(found, "evaluator_leader_awaited", task="1") == 1
    assert value_of(found, "evaluator_leader_buffered_queries") == 7
    assert value_of(found, "evaluator_leader_ignored_queries") == 3
    assert value_of(found, "evaluator_leader_interval_timestamp_seconds") == NOW_MS / 1000
    before = shown(learned(now_ms=None))
    assert value_of(before, "evaluator_leader_interval_timestamp_seconds") is None


def test_a_model_exports_its_live_weights_and_the_state_of_its_experiment():
    found = shown(learned())
    assert value_of(found, "evaluator_weights_epoch", model="ranker") == 1
    assert value_of(found, "evaluator_weights_last_version", model="ranker") == 5
    version, weight = "evaluator_weights_version", "evaluator_weights_value"
    assert value_of(found, version, model="ranker", ranker="champion") == 4
    assert value_of(found, version, model="other", ranker="champion") is None
    candidate = {"model": "ranker", "ranker": "challenger"}
    assert value_of(found, weight, **candidate, feature="phi_b") == -1.0
    assert value_of(found, "evaluator_learning_updates", model="ranker") == 250
    assert value_of(found, "evaluator_learning_loss", model="ranker") == 1.25
    assert value_of(found, "evaluator_learning_loss", model="other") is None
    assert value_of(found, "evaluator_learning_frozen", model="ranker") == 0
    assert value_of(found, "evaluator_learning_frozen", model="other") == 1
    unusable = "evaluator_learning_unusable_queries_total"
    assert value_of(found, unusable, model="ranker", reason="features") == 4
    assert value_of(found, unusable, model="ranker", reason="overflow") == 1
    assert value_of(found, "evaluator_learning_unusable_share", model="ranker") == 0.005
    assert value_of(found, "evaluator_experiment_evidence", model="ranker", side="for") == 12.5
    assert value_of(found, "evaluator_experiment_evidence", model="ranker", side="against") == 0.25
    assert value_of(found, "evaluator_experiment_evidence_needed", model="ranker") == 100
    assert value_of(found, "evaluator_experiment_traces", model="ranker") == 900


def test_promotions_are_exported_at_zero_as_soon_as_a_model_is_known():
    found = shown(learned())
    name = "evaluator_weights_releases_total"
    assert value_of(found, name, model="ranker", status="promoted") == 1
    assert value_of(found, name, model="other", status="promoted") == 0
    assert value_of(found, name, model="other", status="rolled_back") == 0


def test_promotions_of_the_seventeenth_model_count_as_other():
    counts = {("releases", f"m{i:02}", "challenger"): 2 for i in range(19)}
    found = shown(learned(counts=counts, models=()))
    name = "evaluator_weights_releases_total"
    assert value_of(found, name, model="m15", status="challenger") == 2
    assert value_of(found, name, model="m16", status="challenger") is None
    assert value_of(found, name, model=OTHER, status="challenger") == 3 * 2


def test_sixty_four_features_are_exported_and_equal_looking_names_once():
    names = ("a\0", "a\ufffd", *(f"f{i}" for i in range(100)))
    version = Version(1, 0, tuple(map(float, range(102))), names)
    model_view = RANKER._replace(champion=version, challenger=None)
    metrics = {metric.name: metric for metric in shown(learned(models=(model_view,)))}
    found = [sample.labels["feature"] for sample in metrics["evaluator_weights_value"].samples]
    assert len(found) == 64 - 1
    assert found[-1] == "f61"


def test_champion_and_challenger_are_rankers_beside_the_served_order():
    snapshot = one_task(quality(("ranker", "prod"), SERVED, queries=4, value=0.5))
    collector = EvaluatorCollector(
        lambda: snapshot, ready=lambda: True, version="1", leader=learned
    )
    found = list(collector.collect())
    for ranker, queries, score in (("champion", 40 - 8, 30 - 6), ("challenger", 20, 0)):
        of = {"model": "ranker", "variant": "", "ranker": ranker, "measure": "mrr"}
        assert value_of(found, "evaluator_quality_queries_total", **of) == queries
        assert value_of(found, "evaluator_quality_value_total", **of) == score
        assert value_of(found, "evaluator_quality_value_squares_total", **of) is None
    nothing = {"model": "other", "variant": "", "ranker": "champion", "measure": "mrr"}
    assert value_of(found, "evaluator_quality_queries_total", **nothing) == 0
    served = {"model": "ranker", "variant": "prod", "ranker": SERVED, "measure": "mrr"}
    assert value_of(found, "evaluator_quality_queries_total", **served) == 4
    settled = {path for path in samples(found) if path[0] == "evaluator_queries_settled_total"}
    assert not [path for path in settled if ("variant", "") in path[1]]


def test_champion_rankers_beyond_the_limit_are_folded():
    pairs = [(f"m{i}", "v") for i in range(60)]
    tally = {}
    for pair in pairs:
        tally |= quality(pair, SERVED, queries=1, value=0.5)
    path = ("values", "late", "champion", "mrr")
    counts = {(*path, "queries"): 5, (*path, "sum_units"): 5 * UNITS_PER_ONE}
    found = scrape(one_task(tally), leader=learned(counts=counts))
    of = {"model": OTHER, "variant": OTHER, "ranker": "champion", "measure": "mrr"}
    assert value_of(found, "evaluator_quality_queries_total", **of) == 5


def test_alarms_are_exported_by_series():
    found = shown(learned())
    watched, quiet = learned().alarms.series
    on, off = watched.series._asdict(), quiet.series._asdict()
    assert value_of(found, "evaluator_alarm_active", **on) == 1
    assert value_of(found, "evaluator_alarm_acknowledged", **on) == 1
    assert value_of(found, "evaluator_alarm_evidence_ratio", **on) == 1.7
    assert value_of(found, "evaluator_alarm_since_timestamp_seconds", **on) == NOW_MS / 1000
    assert value_of(found, "evaluator_alarm_observed_mean", **on) == watched.alarm.observed
    assert value_of(found, "evaluator_alarm_expected_mean", **on) == watched.alarm.expected
    for n, name in enumerate(("mean", "expected_mean", "spread")):
        assert value_of(found, f"evaluator_alarm_day_{name}", **on) == (0.58, 0.6, 0.005)[n]
        assert value_of(found, f"evaluator_alarm_day_{name}", **off) is None
    assert value_of(found, "evaluator_alarm_reference_weeks", **on) == 4
    carrier = {**on, "carrier": "locale=de"}
    assert value_of(found, "evaluator_alarm_carried_share", **carrier) == 0.82
    assert value_of(found, "evaluator_alarm_usable_windows", **on) == 4
    assert value_of(found, "evaluator_alarm_reference_timestamp_seconds", **on) is None
    assert value_of(found, "evaluator_alarm_usable_windows", **off) == 0
    of_quiet = value_of(found, "evaluator_alarm_reference_timestamp_seconds", **off)
    assert of_quiet == quiet.reference_from_ms / 1000
    assert value_of(found, "evaluator_alarm_active", **off) == 0
    assert value_of(found, "evaluator_alarm_since_timestamp_seconds", **off) is None
    assert value_of(found, "evaluator_alarm_series_left_out") == 2
    assert value_of(found, "evaluator_alarm_tick_timestamp_seconds") == NOW_MS / 1000
    many = tuple(Carrier("locale", f"l{n}", 0.2, 0.1, -0.1) for n in range(9))
    alarm = watched.alarm._replace(carried_by=many)
    alarms = replace(learned().alarms, series=(replace(watched, alarm=alarm),))
    families = {of.name: of.samples for of in shown(learned(alarms=alarms))}
    assert len(families["evaluator_alarm_carried_share"]) == 3
