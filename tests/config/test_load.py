"""The sources of settings, and the errors of unusable settings."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator.config import ConfigError, load_settings
from evaluator.config.settings import SPECS

DURATIONS = [name for name in SPECS if name.endswith("_ms")]
MAY_BE_NONE = [name for name in DURATIONS if name.startswith("gate_")]


def refusal(**sources) -> str:
    """The words with which these sources are refused."""
    with pytest.raises(ConfigError) as refused:
        load_settings(**{"environment": {}, **sources})
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.fixture
def toml(tmp_path):
    def write(text: str | bytes):
        file = tmp_path / "settings.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def test_later_sources_win(toml):
    file = toml("early_ms = 1\nremember_ms = 1\nidle_ms = 1")
    settings = load_settings(
        config_file=file,
        environment={"EVALUATOR_REMEMBER_MS": "2", "EVALUATOR_IDLE_MS": "2"},
        assignments=["idle_ms=3", "idle_ms=4"],
    )
    assert (settings.early_ms, settings.remember_ms, settings.idle_ms) == (1, 2, 4)
    assert settings.window_ms == 60_000


def test_only_variables_with_the_prefix_count():
    assert load_settings(environment={"RETENTION_MS": "x", "HOME": "/"}).retention_ms == 86_400_000


@pytest.mark.parametrize(
    ("sources", "nearest"),
    [
        ({"assignments": ["retension_ms=5"]}, "retention_ms"),
        ({"assignments": ["RETENTION-MS=5"]}, "retention_ms"),
        ({"environment": {"EVALUATOR_MEASURE": "top1"}}, "EVALUATOR_MEASURES"),
        ({"environment": {"EVALUATOR_retention_ms": "1"}}, "EVALUATOR_RETENTION_MS"),
        ({"environment": {"EVALUATOR_PORT": "9464"}}, "EVALUATOR_HTTP_PORT"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_known_name(sources, nearest):
    message = refusal(**sources)
    assert f"is not a setting. The nearest one is {nearest}" in message


@pytest.mark.parametrize(
    "sources",
    [
        {"assignments": ["=5"]},
        {"assignments": ["zzz=5"]},
        {"environment": {"EVALUATOR_": "1"}},
        {"environment": {"EVALUATOR_FOO": "1"}},
    ],
)
def test_no_setting_is_suggested_for_a_name_unlike_any_setting(sources):
    message = refusal(**sources)
    assert "is not a setting. docs/settings.md lists all." in message


def test_a_too_deeply_nested_file_is_refused_with_a_clear_message(toml):
    message = refusal(config_file=toml(f"x = {'[' * 5_000}{']' * 5_000}"))
    assert message.endswith("is not TOML: it is nested too deeply.")


def test_an_unknown_setting_of_a_file_names_the_file(toml):
    message = refusal(config_file=toml("retension_ms = 1"))
    assert message.startswith("retension_ms (")
    assert "settings.toml) is not a setting" in message


def test_an_example_that_ends_with_a_point_ends_the_sentence():
    assert refusal(assignments=["output_prefix=a b"]).endswith("e.g. green.")


def test_a_table_of_a_file_is_refused(toml):
    message = refusal(config_file=toml("[evaluator]\nretention_ms = 1"))
    assert message.startswith("[evaluator] (")
    assert "settings.toml) is a table. Write its settings without a table." in message


def test_the_value_of_an_unknown_setting_is_not_shown():
    assert "hush" not in refusal(environment={"EVALUATOR_SASL_PASSWORD": "hush"})
    assert "hush" not in refusal(assignments=["sasl_password=hush"])


def test_a_refused_secret_is_not_shown():
    message = refusal(assignments=["sasl_username=hush\nhush"])
    assert "hush" not in message
    assert "sasl_username is ***" in message


def test_variables_that_kubernetes_injects_for_services_are_ignored(subtests):
    for name in [
        "EVALUATOR_SERVICE_HOST",
        "EVALUATOR_SERVICE_PORT",
        "EVALUATOR_SERVICE_PORT_METRICS",
        "EVALUATOR_PORT",
        "EVALUATOR_PORT_9464_TCP",
        "EVALUATOR_PORT_9464_TCP_PROTO",
        "EVALUATOR_PORT_9464_TCP_PORT",
        "EVALUATOR_PORT_9464_TCP_ADDR",
        "EVALUATOR_PORT_9464_UDP_ADDR",
        "EVALUATOR_LIVE_SERVICE_HOST",
        "EVALUATOR_LIVE_PORT_9464_TCP",
        "EVALUATOR_HTTP_PORT",
    ]:
        with subtests.test(name=name):
            assert load_settings(environment={name: "tcp://10.0.0.1:9464"}).http_port == 9464


def test_the_port_can_be_set_by_the_environment():
    assert load_settings(environment={"EVALUATOR_HTTP_PORT": "80"}).http_port == 80


def test_a_duration_is_an_integer_from_zero(subtests):
    for name in DURATIONS:
        for written in ["-1", "1.0", "1s", "", " 1", "1_000", "true", "\u0661", "+1"]:
            if not written and name in MAY_BE_NONE:
                continue
            with subtests.test(name=name, written=written):
                message = refusal(assignments=[f"{name}={written}"])
                assert message.startswith(f"{name} is ")
                assert "(--set)" in message
                assert f"e.g. {SPECS[name].example}." in message


@pytest.mark.parametrize("written", ["1.0", "true", "[1]", "1e3", "2020-01-01"])
def test_a_duration_in_a_file_is_an_integer(toml, written):
    assert "Accepted: an integer >= 0" in refusal(config_file=toml(f"early_ms = {written}"))


@pytest.mark.parametrize("written", ["a,a", "a,,b", ",".join("abcdefghi"), "x" * 257, "a\x1fb"])
def test_segments_are_a_limited_number_of_distinct_names(written):
    assert "Accepted: up to 8 different names of 1 to 256 bytes" in refusal(
        assignments=[f"segments={written}"]
    )
    settings = load_settings(environment={}, assignments=["segments= locale ,device"])
    assert settings.segments == ("locale", "device")


@pytest.mark.parametrize("written", ["locale", "locale=", "locale=a,locale=a", "locale=__other__"])
def test_levels_are_given_with_their_segments(written):
    assert "up to 1000 SEGMENT=LEVEL" in refusal(
        assignments=["segments=locale", f"segment_levels={written}"]
    )
    chosen = ["segments=locale", "segment_levels=locale=de,locale=a=b"]
    settings = load_settings(environment={}, assignments=chosen)
    assert settings.segment_levels == (("locale", "de"), ("locale", "a=b"))


def test_levels_and_measures_of_segments_must_be_configured():
    assert "'locale' is not in segments" in refusal(assignments=["segment_levels=locale=de"])
    assert "segment_measures names 'p@3'" in refusal(assignments=["segment_measures=p@3"])


@pytest.mark.parametrize("written", ["click", "click=most", "click=max,click=last", "=max"])
def test_a_merge_by_source_is_last_or_max_for_each_source(written):
    message = refusal(assignments=[f"grades_merge_by_source={written}"])
    assert "Accepted: NAME=last or NAME=max, with commas; or none" in message


def test_a_duration_may_be_of_any_size():
    huge = 10**30
    settings = load_settings(
        environment={}, assignments=[f"retention_ms={huge}", f"maturity_ms={huge}"]
    )
    assert settings.maturity_ms == huge


@pytest.mark.parametrize("digits", [3_000, 5_000])
def test_a_number_longer_than_any_duration_is_refused_in_one_line(toml, digits):
    assert "Accepted: an integer" in refusal(assignments=["early_ms=" + "9" * digits])
    assert refusal(config_file=toml("early_ms = " + "9" * digits))
    assert "too long" in refusal(config_file=toml("early_ms = 0x" + "f" * digits))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "retention_ms",
            (
                "retention_ms is 0 (--set), so no judgment can ever join. Set it to the longest "
                "delay you accept, e.g. 86400000 (one day)."
            ),
        ),
        (
            "window_ms",
            (
                "window_ms is 0 (--set), so a window would be empty. Set it to the length of "
                "a window, e.g. 60000 (one minute)."
            ),
        ),
    ],
)
def test_retention_and_window_are_at_least_one(name, message):
    assert refusal(assignments=[f"{name}=0"]) == message


def test_every_other_duration_may_be_zero():
    positive = ("retention_ms", "window_ms", "session_timeout_ms", "gate_block_ms")
    positive += ("snapshot_interval_ms",)
    others = [name for name in DURATIONS if name not in positive]
    settings = load_settings(environment={}, assignments=[f"{name}=0" for name in others])
    assert {getattr(settings, name) for name in others} == {0}


@pytest.mark.parametrize("written", ["0", "999", "86400001"])
def test_a_session_timeout_is_a_second_to_a_day(written):
    message = refusal(assignments=[f"session_timeout_ms={written}"])
    assert "Accepted: an integer from 1000 to 86400000, e.g. 20000." in message


@pytest.mark.parametrize("written", ["0", "100001", "-5", "all"])
def test_a_batch_has_one_to_a_hundred_thousand_records(written):
    message = refusal(assignments=[f"max_poll_records={written}"])
    assert "Accepted: an integer from 1 to 100000, e.g. 5000." in message


@pytest.mark.parametrize(
    ("written", "meant"), [("on", True), ("true", True), ("off", False), ("false", False)]
)
def test_a_switch_is_on_or_off(written, meant):
    assert load_settings(environment={"EVALUATOR_HEARTBEATS": written}).heartbeats is meant


@pytest.mark.parametrize("written", ["", "yes", "1", "ON"])
def test_other_values_of_a_switch_are_refused(written):
    assert "Accepted: on or off" in refusal(assignments=[f"emit_query={written}"])


def test_a_switch_of_a_file_may_be_a_boolean(toml):
    settings = load_settings(config_file=toml("heartbeats = false"), environment={})
    assert settings.heartbeats is False


def test_measures_are_a_list_or_a_text_with_commas(toml):
    listed = load_settings(config_file=toml('measures = ["top1", "ndcg@10"]'), environment={})
    written = load_settings(environment={}, assignments=["measures=top1, ndcg@10"])
    assert listed.measures == written.measures == ("top1", "ndcg@10")


@pytest.mark.parametrize(
    "written", ["", "top1,", ",", ",".join(f"ndcg@{k}" for k in range(1, 258))]
)
def test_measures_are_one_to_256_names(written):
    message = refusal(assignments=[f"measures={written}"])
    assert "Accepted: 1 to 256 names of measures" in message
    assert "e.g. top1,top3,mrr,ndcg@10,map@10." in message


@pytest.mark.parametrize("written", ["[]", "[1]", '["top1", ""]', '[["top1"]]', "3"])
def test_measures_of_a_file_are_names(toml, written):
    assert "names of measures" in refusal(config_file=toml(f"measures = {written}"))


def test_an_unknown_measure_is_refused_with_the_origin_of_the_setting():
    message = refusal(assignments=["measures=top1,top2"])
    assert message.startswith("measures (--set): ")
    assert "top2" in message


@pytest.mark.parametrize(
    ("written", "meant"), [("0.5", 0.5), ("1e-3", 0.001), ("3", 3.0), ("+.25", 0.25)]
)
def test_a_rate_is_a_number(toml, written, meant):
    found = load_settings(environment={}, assignments=[f"learning_rate={written}"]).learning_rate
    assert (found, type(found)) == (meant, float)
    of_file = load_settings(config_file=toml(f"learning_rate = {meant}"), environment={})
    assert of_file.learning_rate == meant


@pytest.mark.parametrize("written", ["0", "-1", "nan", "inf", "1e999", "1_0", "", "0x1", "1,5"])
def test_other_values_of_a_rate_are_refused(written):
    message = refusal(assignments=[f"learning_rate={written}"])
    assert "Accepted: a number > 0, e.g. 0.05." in message


def test_a_tolerance_of_alarms_is_at_most_the_range_of_a_measure():
    for written in ("1.01", "1e160", "0"):
        message = refusal(assignments=[f"alarm_tolerance={written}"])
        assert "Accepted: a number > 0, at most 1" in message
    assert load_settings(environment={}, assignments=["alarm_tolerance=1"]).alarm_tolerance == 1


def test_an_invalid_number_in_a_file_is_refused(toml):
    for written in ("true", "nan", "[1.0]", "9" * 400):
        assert "Accepted: a number >= 0" in refusal(config_file=toml(f"l2 = {written}"))


def test_a_norm_may_be_none():
    for written, meant in (("none", None), ("", None), ("2", 2.0)):
        assert (
            load_settings(environment={}, assignments=[f"clip_norm={written}"]).clip_norm == meant
        )


def test_initial_weights_are_numbers_with_commas_or_none(toml):
    for written, meant in (("0.5,-1, 2e1", (0.5, -1.0, 20.0)), ("", ()), ("3", (3.0,))):
        settings = load_settings(environment={}, assignments=[f"initial_weights={written}"])
        assert settings.initial_weights == meant
    listed = load_settings(config_file=toml("initial_weights = [1, 0.5]"), environment={})
    assert listed.initial_weights == (1.0, 0.5)
    for written in ("1,", "a", "1;2"):
        assert "Accepted: numbers" in refusal(assignments=[f"initial_weights={written}"])


def test_ties_are_ordered_by_id_or_averaged():
    assert load_settings(environment={}, assignments=["ties=average"]).ties == "average"
    assert "Accepted: id or average" in refusal(assignments=["ties=random"])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("empty", "none"),
        ("security_protocol", "ssl"),
        ("sasl_mechanism", "GSSAPI"),
        ("log_format", "xml"),
        ("log_level", "loud"),
        ("topic_prefix", "a b"),
        ("topic_prefix", "a" * 151),
        ("output_prefix", "a b"),
        ("http_port", "65536"),
        ("http_host", ""),
        ("group_id", ""),
        ("state_dir", ""),
        ("err_max_grade", "32"),
        ("ips_clip", "0.9"),
        ("ips_clip", "1001"),
    ],
)
def test_a_wrong_value_is_refused_with_the_accepted_values_and_an_example(name, written):
    message = refusal(environment={f"EVALUATOR_{name.upper()}": written})
    assert message.startswith(f"{name} is {written[:80] or 'empty'} (EVALUATOR_{name.upper()}).")
    example = SPECS[name].example.removesuffix(".")
    assert message.endswith(f"Accepted: {SPECS[name].kind.accepts}, e.g. {example}.")


def test_an_empty_text_unsets_a_setting_without_default(toml):
    settings = load_settings(
        config_file=toml('ssl_cafile = "ca.pem"'), environment={"EVALUATOR_SSL_CAFILE": ""}
    )
    assert settings.ssl_cafile is None


def test_an_assignment_needs_a_value():
    assert refusal(assignments=["retention_ms"]).startswith("--set retention_ms has no value.")


def test_only_the_first_equals_sign_separates_name_and_value():
    assert load_settings(environment={}, assignments=["group_id=a=b"]).group_id == "a=b"


@pytest.mark.parametrize("content", ["retention_ms", b"\xff", "a = 1\na = 2", "a = " + "[" * 9_999])
def test_a_file_that_is_not_toml_is_refused(toml, content):
    assert "is not TOML" in refusal(config_file=toml(content))


def test_a_missing_file_is_refused(tmp_path):
    assert "No such file" in refusal(config_file=tmp_path / "none.toml")
    assert "Is a directory" in refusal(config_file=tmp_path)


def test_contradictions_between_sources_are_refused():
    message = refusal(environment={"EVALUATOR_RETENTION_MS": "10"}, assignments=["maturity_ms=11"])
    assert message.startswith("maturity_ms is 11 and retention_ms is 10")


@example("segment_levels", "0=\ufefd")
@given(st.sampled_from(list(SPECS)), st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(name, written):
    try:
        load_settings(environment={}, assignments=[f"{name}={written}"])
    except ConfigError as refused:
        assert str(refused).isprintable()


@given(st.text(max_size=200), st.text(max_size=20))
def test_any_name_is_known_or_refused_in_one_line(name, written):
    try:
        load_settings(environment={f"EVALUATOR_{name}": written})
    except ConfigError as refused:
        assert str(refused).isprintable()


def test_the_example_of_a_setting_is_accepted(subtests):
    for name in list(SPECS):
        with subtests.test(name=name):
            example = SPECS[name].example.split(" (", maxsplit=1)[0]
            smallest = ["maturity_ms=0"] if name == "retention_ms" else []
            pairs = [("ssl_certfile", "ssl_keyfile"), ("http_tls_certfile", "http_tls_keyfile")]
            pairs.append(("registry_username", "registry_password_file"))
            together = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
            partner = [f"{together[name]}=partner.pem"] if name in together else []
            partner += ["segments=locale,device"] if name.endswith("_levels") else []
            assert load_settings(
                environment={}, assignments=[*smallest, *partner, f"{name}={example}"]
            )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("p[rel=2]@10=0.3", (("p[rel=2]@10", 0.3),)),
        ("mrr=0.1, fbeta[2,rel=2]@10=0.2", (("mrr", 0.1), ("fbeta[2,rel=2]@10", 0.2))),
    ],
)
def test_a_share_may_be_of_a_measure_with_parameters(written, meant):
    names = "measures=mrr,ndcg@10,p[rel=2]@10,fbeta[2,rel=2]@10"
    assignments = [names, f"alarm_objectives={written}"]
    settings = load_settings(environment={}, assignments=assignments)
    assert settings.alarm_objectives == meant


@pytest.mark.parametrize(
    "name", ["source_weights", "source_max_judgments", "grades_merge_by_source"]
)
def test_a_source_is_named_once(name):
    value = "last" if name == "grades_merge_by_source" else "1"
    with pytest.raises(ConfigError, match=name):
        load_settings(environment={}, assignments=[f"{name}=a={value}, a={value}"])


@pytest.mark.parametrize(
    "written",
    ["http_host=a..b", f"http_host={'x' * 70}", f"group_id={'x' * 40_000}"]
    + [f"{name}=\udcff" for name in ("http_host", "group_id", "alarm_rankers", "state_dir")],
)
def test_a_text_that_no_library_takes_is_refused(written):
    with pytest.raises(ConfigError, match="Accepted"):
        load_settings(environment={}, assignments=[written])
