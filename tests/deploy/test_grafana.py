"""The dashboards and the provisioning of Grafana."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from pydantic import ValidationError

from evaluator.leader.loop import MAX_BUFFERED
from scripts.write_dashboards import FOLDER, documents
from tests.deploy.grafana import Alerting, Providers, Sources
from tests.deploy.rules import rules_of, threshold
from tests.tidy.test_docs import anchors

ROOT = Path(__file__).parents[2]
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
MODELS = {"datasources": Sources, "dashboards": Providers, "alerting": Alerting}
KINDS = ("stat", "timeseries", "heatmap", "table")
FILES = sorted(FOLDER.glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FILES}
PANELS = [
    (board, panel)
    for board in BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def test_the_dashboards_are_up_to_date():
    made = documents()
    assert set(made) == set(FILES)
    for path, text in made.items():
        assert path.read_text("utf-8") == text, "run: make generate"


def parsed_by_schema(board):
    """A dashboard without the members that are not in the schema."""
    register_default_plugins()  # without them queries and what is of one kind of panel pass as is
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


@pytest.mark.parametrize("name", BOARDS)
def test_the_schema_of_the_kit_has_every_member(name):
    assert parsed_by_schema(BOARDS[name]) == BOARDS[name]


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        *[(kind, ()) for kind in KINDS],
        *[(kind, ("options",)) for kind in KINDS],
        *[(kind, ("targets", 0)) for kind in KINDS],
        ("timeseries", ("fieldConfig", "defaults", "custom")),
        ("heatmap", ("fieldConfig", "defaults", "custom")),
    ],
)
def test_a_member_that_is_not_in_the_schema_is_detected(kind, inside):
    board = copy.deepcopy(BOARDS["quality"])
    panel = next(panel for panel in board["panels"] if panel["type"] == kind)
    for name in inside:
        panel = panel[name]
    panel["lineWdith"] = 2
    assert parsed_by_schema(board) != board


def test_dashboards_have_unique_ids():
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)


def test_a_panel_describes_its_content_unit_and_action(subtests):
    for board, panel in PANELS:
        with subtests.test(board=board["title"], panel=panel["title"]):
            assert len(panel["description"]) > 20
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert panel["links"]
            for link in panel["links"]:
                address, anchor = link["url"].split("#")
                assert address == "${runbooks:raw}"
                assert anchor in anchors(ROOT / "docs" / "runbooks.md")
                assert anchor in {name.lower() for name in rules_of("alert")}


def test_an_alert_links_to_a_dashboard_that_links_to_its_runbook(subtests):
    by_uid = {board["uid"]: board for board in BOARDS.values()}
    for name, alert in rules_of("alert").items():
        with subtests.test(name=name):
            link = re.fullmatch(
                r'{{ with query "evaluator:dashboards" }}{{ \. \| first \| label "url" }}{{ end }}'
                r"/d/([\w-]+)\?(.+)",
                alert["annotations"]["dashboard_url"],
            )
            board = by_uid[link[1]]
            known = {variable["name"] for variable in board["templating"]["list"]}
            filters = re.findall(r"var-(\w+)={{ \$labels\.(\w+) \| urlquery }}", link[2])
            assert (
                "&".join(f"var-{of}={{{{ $labels.{of} | urlquery }}}}" for of, _ in filters)
                == (link[2])
            )
            assert {label for label, _ in filters} <= known
            assert ("job", "job") in filters
            back = {link["url"] for panel in board["panels"] for link in panel.get("links", ())}
            assert f"${{runbooks:raw}}#{name.lower()}" in back


def test_the_addresses_of_runbooks_are_those_of_the_rules():
    for board in BOARDS.values():
        (runbooks,) = [of for of in board["templating"]["list"] if of["name"] == "runbooks"]
        assert runbooks["query"] == "label_values(evaluator:runbooks, url)"
    assert {"evaluator:runbooks", "evaluator:dashboards"} <= set(rules_of("record"))


def test_a_panel_uses_existing_variables_and_filters_by_job(subtests):
    for board, panel in PANELS:
        with subtests.test(board=board["title"], panel=panel["title"]):
            known = {variable["name"] for variable in board["templating"]["list"]}
            for target in panel["targets"]:
                used = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
                assert used <= known
                assert "$job" in target["expr"] or not re.search(
                    r"evaluator_|ratio|increase", target["expr"]
                )


INVENTORY = {
    "quality": {
        "Mean of the last hour": "evaluator:quality_mean:ratio1h",
        "Mean by the hour, with its bounds": "evaluator:quality_stderr:ratio1h",
        "Mean by the day": "evaluator:quality_stderr:ratio1d",
        "Change to last week": "evaluator:quality_change:ratio1h",
        "Change to the same hour last week, with its bounds": "evaluator:quality_change_stderr",
        "Overview, the largest loss first": "evaluator:quality_change:ratio1h",
        "Evidence of alarms": "evaluator_alarm_evidence_ratio",
        "Watched series, the most evidence first": "evaluator_alarm_reference_weeks",
        "Mean of levels by the hour": "evaluator_segment_value_total",
        "Levels minus all queries, the worst first": "evaluator_segment_queries_total",
        "Judged in time, by level": "evaluator_segment_queries_settled_total",
        "Judged in time": "evaluator:coverage:ratio1h",
        "Judged in time, and last week": "evaluator:coverage:ratio1h",
        "How the values spread": "evaluator_quality_values_bucket",
        "Share of bad queries": "evaluator:bad_share:ratio1h",
        "Delay of judgments": "evaluator_judgment_delay_seconds_bucket",
    },
    "pipeline": {
        "Records of rankings by outcome": "evaluator_messages_total",
        "Records of judgments by outcome": "evaluator_messages_total",
        "Dead letters by reason": "evaluator:dead_letter_share:ratio15m",
        "Queries settled, judged in time or not": "evaluator_queries_settled_total",
        "Delay of judgments": "evaluator_judgment_delay_seconds_bucket",
        "Unread records by task": "evaluator:lag:sum",
        "Age of the watermark by task": "evaluator:watermark_age_seconds:min",
        "Open queries and early judgments": "evaluator_open_queries",
        "State by task": "evaluator_state_bytes",
        "Left to restore by task": "evaluator_restore_left",
        "Age of the last checkpoint by task": "evaluator:checkpoint_age_seconds:min",
        "Age of the last snapshot by task": "evaluator:snapshot_age_seconds:min",
        "Records that evaluator map has finished": "evaluator_map_records_total",
        "Records that wait for evaluator map": "evaluator:map_lag:sum",
        "Age of the clocks of evaluator map": "evaluator_map_clock_timestamp_seconds",
    },
    "learning": {
        "Champion and challenger, means of an hour": 'ranker="challenger"',
        "Challenger minus champion": 'ranker="champion"',
        "Evidence": "evaluator_experiment_evidence_needed",
        "Weights of the champion": "evaluator_weights_value",
        "Weights of the challenger": "evaluator_weights_value",
        "Loss": "evaluator_learning_loss",
    },
}
"""Required panels of each dashboard, and a figure that the panel queries."""
VARIABLES = {
    "quality": {"model", "variant", "ranker", "measure", "segment"},
    "pipeline": {"model", "variant"},
    "learning": {"model", "measure"},
}


def test_the_expected_dashboards_exist():
    assert set(INVENTORY) == set(VARIABLES) == set(BOARDS)


def test_required_panels_exist(subtests):
    for name, title, figure in [
        (name, title, figure) for name, of in INVENTORY.items() for title, figure in of.items()
    ]:
        with subtests.test(name=name, title=title, figure=figure):
            (panel,) = [one for one in BOARDS[name]["panels"] if one["title"] == title]
            assert any(figure in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_of_a_dashboard_filters_a_panel(name):
    board = BOARDS[name]
    chosen = {one["name"] for one in board["templating"]["list"]}
    assert chosen == {"datasource", "job", "runbooks", *VARIABLES[name]}
    expressions = " ".join(
        target["expr"] for one in board["panels"] for target in one.get("targets", [])
    )
    for variable in VARIABLES[name]:
        assert f'{variable}=~"${variable}"' in expressions


@pytest.mark.parametrize("name", BOARDS)
def test_alerts_deployments_and_promotions_are_marked(name):
    marked = {one["name"]: one["expr"] for one in BOARDS[name]["annotations"]["list"]}
    assert "ALERTS{" in marked["Alerts"]
    assert "evaluator_build_info" in marked["Deployments"]
    assert "promoted|rolled_back" in marked["Promotions"]
    assert "evaluator_alarm_active" in marked["Alarms"]


def test_values_have_exemplars():
    (heatmap,) = [one for one in BOARDS["quality"]["panels"] if one["type"] == "heatmap"]
    assert [target["exemplar"] for target in heatmap["targets"]] == [True]


def test_a_table_is_sorted_by_its_first_number_and_names_its_columns():
    tables = [one for board in BOARDS.values() for one in board["panels"] if one["type"] == "table"]
    assert len(tables) == 3
    for panel in tables:
        names = [target["legendFormat"] for target in panel["targets"]]
        is_evidence = names[0] == "evidence"
        assert panel["options"]["sortBy"] == [{"displayName": names[0], "desc": is_evidence}]
        (organized,) = [
            one["options"] for one in panel["transformations"] if one["id"] == "organize"
        ]
        assert list(organized["renameByName"].values()) == names
        assert all(target["instant"] for target in panel["targets"])


def test_time_series_panels_show_a_legend():
    for board in BOARDS.values():
        for panel in board["panels"]:
            if panel["type"] == "timeseries":
                assert panel["options"]["legend"]["showLegend"] is True, panel["title"]


RED = {
    ("pipeline", "Unread records of a task"): threshold("lag_limit"),
    ("pipeline", "Oldest watermark"): threshold("watermark_age_limit_seconds"),
    ("learning", "Buffered queries"): MAX_BUFFERED,
}
"""Limits of panels with a number. Other panels turn red at one event, or by the sign."""


def test_a_panel_turns_red_where_an_alert_would_fire():
    reds = {
        (name, panel["title"]): step["value"]
        for name, board in BOARDS.items()
        for panel in board["panels"]
        if panel["type"] != "row"
        for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        if step["value"] is not None
    }
    assert {place: value for place, value in reds.items() if value not in (0, 1)} == RED


@pytest.mark.parametrize(
    ("name", "title", "number"),
    [
        ("quality", "Delay of judgments", "judgment_delay_limit_seconds"),
        ("quality", "Share of bad queries", "bad_share_burn"),
        ("quality", "Judgments without a ranking", "orphan_share_limit"),
        ("pipeline", "Dead letters by reason", "dead_letter_share_limit"),
        ("pipeline", "Delay of judgments", "judgment_delay_limit_seconds"),
        ("pipeline", "Unread records by task", "lag_limit"),
        ("pipeline", "Records that wait for evaluator map", "lag_limit"),
        ("pipeline", "Age of the watermark by task", "watermark_age_limit_seconds"),
        ("pipeline", "Age of the last checkpoint by task", "checkpoint_age_limit_seconds"),
        ("pipeline", "Age of the last snapshot by task", "snapshot_age_limit_seconds"),
    ],
)
def test_a_panel_shows_the_limit_of_its_alert(name, title, number):
    (panel,) = [one for one in BOARDS[name]["panels"] if one["title"] == title]
    limits = [one["expr"] for one in panel["targets"] if one["legendFormat"].endswith("limit")]
    assert any(f"evaluator:{number}" in expr for expr in limits)
    runbook = panel["links"][0]["title"].removeprefix("Runbook: ")
    assert f"evaluator:{number}" in rules_of("alert")[runbook]["expr"]


def test_panels_do_not_overlap():
    for board in BOARDS.values():
        taken = [
            (x, y)
            for panel in board["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(taken)) == len(taken)
        assert max(x for x, _ in taken) < 24


def provisioned(folder):
    (path,) = (PROVISIONING / folder).glob("*")
    return path.read_text("utf-8")


def test_the_data_sources_match_the_schema_of_grafana():
    sources = Sources.model_validate(yaml.safe_load(provisioned("datasources"))).datasources
    assert len({source.uid for source in sources}) == len(sources)
    assert [s.type for s in sources if getattr(s, "is_default", False)] == ["prometheus"]


def test_the_dashboards_are_found_where_the_compose_file_puts_them():
    (provider,) = Providers.model_validate(yaml.safe_load(provisioned("dashboards"))).providers
    assert provider.options.path == "/var/lib/grafana/dashboards"


def test_grafana_alerts_go_to_the_alertmanager_with_the_same_grouping():
    alerting = Alerting.model_validate(yaml.safe_load(provisioned("alerting")))
    (contact,), (policy,) = alerting.contact_points, alerting.policies
    assert policy.receiver == contact.name
    (source,) = [
        one
        for one in Sources.model_validate(yaml.safe_load(provisioned("datasources"))).datasources
        if one.type == "alertmanager"
    ]
    assert [one.settings.url for one in contact.receivers] == [source.url]
    assert not source.json_data.handle_grafana_managed_alerts, "alerts would be sent twice"
    file = ROOT / "deploy" / "compose" / "alertmanager.yml"
    route = yaml.safe_load(file.read_text("utf-8"))["route"]
    assert policy.model_dump(include=set(route) - {"receiver"}) == {
        name: value for name, value in route.items() if name != "receiver"
    }


LONE_DOLLAR = re.compile(r"(?<!\$)(?:\$\$)*\$(?!\$)")


@pytest.mark.parametrize("folder", MODELS)
def test_no_unescaped_dollar_is_in_provisioned_files(folder):
    assert not LONE_DOLLAR.search(provisioned(folder)), "write $$ for a dollar"


@pytest.mark.parametrize(
    ("text", "is_expanded"),
    [("{{ $labels.model }}", True), ("{{ $$labels.model }}", False), ("$$$value", True)],
)
def test_an_unescaped_dollar_is_detected(text, is_expanded):
    assert bool(LONE_DOLLAR.search(text)) == is_expanded


@pytest.mark.parametrize(
    ("folder", "inside"),
    [
        ("datasources", ("datasources",)),
        ("datasources", ("datasources", "jsonData")),
        ("dashboards", ("providers",)),
        ("dashboards", ("providers", "options")),
        ("alerting", ()),
        ("alerting", ("contactPoints",)),
        ("alerting", ("contactPoints", "receivers")),
        ("alerting", ("contactPoints", "receivers", "settings")),
        ("alerting", ("policies",)),
    ],
)
def test_an_unknown_member_is_refused(folder, inside):
    document = part = yaml.safe_load(provisioned(folder))
    for name in inside:
        part = part[name][0] if isinstance(part[name], list) else part[name]
    part["isDefualt"] = True
    with pytest.raises(ValidationError, match="isDefualt"):
        MODELS[folder].model_validate(document)


def test_every_folder_that_grafana_reads_has_a_model():
    assert {path.name for path in PROVISIONING.iterdir()} == set(MODELS)
