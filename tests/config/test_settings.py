"""Settings: their content, contradictions, and display."""

import itertools

import pytest
from msgspec.structs import asdict

from evaluator.config import ConfigError, Settings
from evaluator.config.kinds import as_text
from evaluator.config.settings import SPECS

DEFAULTS = {
    "retention_ms": 86400000,
    "maturity_ms": 3600000,
    "early_ms": 60000,
    "remember_ms": 3600000,
    "out_of_orderness_ms": 300000,
    "max_future_skew_ms": 300000,
    "window_ms": 60000,
    "idle_ms": 10000,
    "heartbeats": True,
    "heartbeat_max_gap_ms": 86400000,
    "heartbeat_outage_wait_ms": 600000,
    "max_lead_ms": 60000,
    "checkpoint_interval_ms": 10000,
    "max_poll_records": 5000,
    "measures": ("top1", "top3", "mrr", "ndcg@10", "map@10"),
    "histogram_measures": (),
    "empty": "zero",
    "ties": "id",
    "judged_only": False,
    "freshness_half_life_ms": 0,
    "map_graded_max_grade": 2,
    "err_max_grade": 4,
    "loss": "softmax",
    "label_mode": "distribution",
    "optimizer": "adagrad",
    "schedule": "constant",
    "learning_rate": 0.05,
    "l2": 0.0,
    "batch_queries": 1,
    "scale": "within_query",
    "clip_norm": None,
    "initial_weights": (),
    "learning": "off",  # beyond the interface, like all that follows up to emit_query
    "embedder": "ngrams",
    "gate_measure": "ndcg@10",
    "gate_guardrails": (),
    "gate": "standard",
    "gate_alpha": None,
    "gate_block_ms": None,
    "gate_min_traces": None,
    "gate_min_age_ms": None,
    "gate_max_age_ms": None,
    "feature_transforms": (),
    "gate_cool_down_ms": None,
    "source_weights": (),
    "implicit_sources": (),
    "source_max_judgments": (),
    "source_max_share": (),
    "learning_interval_ms": 3_600_000,
    "emit_query": True,
    "output_prefix": None,
    "topic_prefix": "",
    "group_id": "evaluator",
    "http_host": "127.0.0.1",
    "http_port": 9464,
    "http_max_connections": 64,
    "http_token_file": None,
    "http_tls_certfile": None,
    "http_tls_keyfile": None,
    "state_dir": "./state",
    "memory_tier_bytes": 512 << 20,  # beyond the interface, like the next two
    "max_store_bytes": 0,
    "session_timeout_ms": 20000,
    "group_instance_id": None,
    "security_protocol": "PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": None,
    "sasl_password_file": None,
    "ssl_cafile": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "log_format": "auto",
    "log_level": "info",
}


def test_the_defaults_are_those_of_the_interface():
    defaults = asdict(Settings())
    assert {name: defaults.get(name) for name in DEFAULTS} == DEFAULTS


def test_a_histogram_of_an_unconfigured_measure_is_refused_with_a_remedy():
    with pytest.raises(ConfigError) as refused:
        Settings(measures=("top1", "mrr"), histogram_measures=("ndcg@10",))
    assert str(refused.value) == (
        "histogram_measures names 'ndcg@10', which is not in measures. "
        "Choose from 'top1', 'mrr', or add it there."
    )


def test_a_label_mode_requires_the_loss_softmax():
    assert Settings(label_mode="sum").loss == "softmax"
    with pytest.raises(ConfigError) as refused:
        Settings(label_mode="gain", loss="lambdarank")
    assert "Leave label_mode out, or set loss to softmax." in str(refused.value)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().retention_ms = 1  # type: ignore[misc]


def test_a_maturity_beyond_the_retention_is_refused_with_a_remedy():
    with pytest.raises(ConfigError) as refused:
        Settings(maturity_ms=7_200_000, retention_ms=3_600_000)
    assert str(refused.value) == (
        "maturity_ms is 7200000 and retention_ms is 3600000, so queries would expire "
        "before they settle. Set maturity_ms to at most retention_ms, e.g. 3600000."
    )


def test_a_maturity_as_long_as_the_retention_is_accepted():
    assert Settings(maturity_ms=5, retention_ms=5).maturity_ms == 5


@pytest.mark.parametrize("missing", ["sasl_username", "sasl_password_file"])
def test_sasl_requires_a_name_and_a_password(missing):
    login = {"sasl_username": "evaluator", "sasl_password_file": "password"}
    del login[missing]
    with pytest.raises(ConfigError, match=f"{missing} is not set"):
        Settings(security_protocol="SASL_SSL", **login)


@pytest.mark.parametrize(
    "given", ["ssl_certfile", "ssl_keyfile", "http_tls_certfile", "http_tls_keyfile"]
)
def test_a_certificate_requires_its_key_and_vice_versa(given):
    with pytest.raises(ConfigError, match="belong together"):
        Settings(**{given: "client.pem"})


def test_secret_settings_are_masked_wherever_settings_are_shown():
    settings = Settings(sasl_username="hush-name", sasl_password_file="hush-file", group_id="seen")
    for shown in (repr(settings), str(settings), f"{settings}", str(settings.as_shown())):
        assert "hush" not in shown
        assert "'***'" in shown
        assert "seen" in shown


def test_every_setting_is_shown_and_those_not_set_are_not_masked():
    shown = Settings().as_shown()
    assert list(shown) == list(SPECS)
    assert shown.keys() == set(Settings.__struct_fields__)
    groups = [spec.group for spec in SPECS.values()]
    assert [a for a, b in itertools.pairwise([*groups, ""]) if a != b] == list(
        dict.fromkeys(groups)
    )
    assert shown["sasl_password_file"] is None


def test_settings_that_change_the_meaning_have_a_fixed_order():
    assert Settings().semantic_settings() == {
        "retention_ms": 86400000,
        "maturity_ms": 3600000,
        "early_ms": 60000,
        "remember_ms": 3600000,
        "out_of_orderness_ms": 300000,
        "max_future_skew_ms": 300000,
        "window_ms": 60000,
        "grades_merge": "last",
        "grades_merge_by_source": [],
        "measures": ["top1", "top3", "mrr", "ndcg@10", "map@10"],
        "empty": "zero",
        "ties": "id",
        "judged_only": False,
        "freshness_half_life_ms": 0,
        "map_graded_max_grade": 2,
        "err_max_grade": 4,
        "ips_clip": 20.0,
        "silence": "unjudged",
        "segments": [],
        "segment_levels": [],
        "segment_measures": [],
    }
    assert list(Settings().semantic_settings())[:3] == ["retention_ms", "maturity_ms", "early_ms"]


@pytest.mark.parametrize("settings", [{"empty": "skip"}, {"maturity_ms": 0}])
def test_silence_that_cannot_be_a_grade_is_refused(settings):
    with pytest.raises(ConfigError, match="silence is zero"):
        Settings(silence="zero", **settings)


# --- learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate_measure": "ndcg@5"}, "gate_measure names 'ndcg@5'"),
        ({"gate_guardrails": (("map", 0.1),)}, "gate_guardrails names 'map'"),
        ({"gate_guardrails": (("ndcg@10", 0.1),)}, "is the gate_measure"),
        ({"gate_alpha": 1.0}, "set it below 1"),
        ({"learning": "auto"}, "no source has a weight"),
        ({"learning": "auto", "source_weights": (("human", 0.0),)}, "no source has a weight"),
        ({"source_max_judgments": (("click", 9),)}, "'click', which is not in source_weights"),
        ({"source_max_share": (("click", 0.5),)}, "'click', which is not in source_weights"),
    ],
)
def test_rules_of_the_gate_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**{"learning": "propose", **settings})


def test_gate_settings_are_not_checked_without_learning():
    assert not Settings(measures=("mrr",)).learns
    assert Settings(learning="auto", source_weights=(("human", 1.0),)).learns


@pytest.mark.parametrize("raw", ["human=1,click=0.2", {"human": 1, "click": 0.2}])
def test_names_with_shares_are_read_from_text_and_from_tables(raw):
    assert SPECS["source_weights"].kind.read(raw) == (("human", 1.0), ("click", 0.2))
    assert as_text((("human", 1.0), ("click", 0.2))) == "human=1.0,click=0.2"


@pytest.mark.parametrize("raw", ["click=1.5", "click=-1", "click", "click=1,click=2"])
def test_an_invalid_name_with_a_count_is_refused(raw):
    assert SPECS["source_max_judgments"].kind.read("click=1000") == (("click", 1000),)
    with pytest.raises(ValueError):
        SPECS["source_max_judgments"].kind.read(raw)


def test_transforms_have_one_order_and_each_feature_once():
    read = SPECS["feature_transforms"].kind.read
    expected = (("a", "log1p"), ("b", "clip:0:1"))
    assert read("b=clip:0:1, a=log1p") == read({"a": "log1p", "b": "clip:0:1"}) == expected
    for raw in ("a=log1p, a=clip:0:1", {"a": "log1p", " a": "log1p"}, "=log1p", "a=log", ["a"], 1):
        with pytest.raises(ValueError):
            read(raw)


@pytest.mark.parametrize("raw", ["human", "human=", "=1", "human=2", "a=1,a=0", "a=-1", ["a"], 1])
def test_an_invalid_name_with_a_share_is_refused(raw):
    with pytest.raises(ValueError):
        SPECS["source_weights"].kind.read(raw)
