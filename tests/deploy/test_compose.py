"""The Compose file, with everything on one machine, and the files that it mounts."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from evaluator.cli import main
from evaluator.config import load_settings
from scripts.recipe import stages_of
from tests.deploy.programs import run_program
from tests.deploy.rules import rules_of
from tests.kafka.broker import Broker
from tests.tidy.tree import ROOT

FOLDER = ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES = COMPOSE["services"]
OWN_SERVICES = ("topics", "evaluator")


@pytest.mark.slow
def test_the_file_is_valid():
    done = run_program("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)
    assert done.returncode == 0, done.stdout


def test_the_file_has_exactly_the_expected_services():
    assert set(SERVICES) == {
        "kafka",
        "topics",
        "evaluator",
        "prometheus",
        "alertmanager",
        "grafana",
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_on_loopback_only(name):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_version_and_can_be_overridden(name):
    assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z/]+:(?!latest)[\w.]+\}", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_volume_is_declared_and_every_mounted_file_exists(name):
    for volume in SERVICES[name].get("volumes", []):
        source, _, *options = volume.split(":")
        if not source.startswith("."):
            assert source in COMPOSE["volumes"]
            continue
        path = (FOLDER / source).resolve()
        assert options == ["ro"]
        assert path.is_relative_to(ROOT / "deploy")
        assert path.exists(), f"{source} is not there"


@pytest.mark.parametrize("name", OWN_SERVICES)
def test_the_evaluator_has_no_more_rights_than_it_needs(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_evaluator_keeps_its_state_where_the_image_expects_it():
    _, image = stages_of((ROOT / "Dockerfile").read_text("utf-8"))
    assert SERVICES["evaluator"]["volumes"] == [f"state:{image.environment['EVALUATOR_STATE_DIR']}"]


def test_settings_in_its_environment_are_accepted():
    settings = load_settings(environment=SERVICES["evaluator"]["environment"])
    assert settings.http_host == "0.0.0.0"


def test_topics_are_created_before_the_worker_starts():
    assert SERVICES["topics"]["depends_on"]["kafka"] == {"condition": "service_healthy"}
    assert SERVICES["evaluator"]["depends_on"]["topics"] == {
        "condition": "service_completed_successfully"
    }


def test_prometheus_uses_mounted_files_and_running_services():
    prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["evaluator:9464"]}]
    assert "../prometheus/rules:/etc/prometheus/rules:ro" in SERVICES["prometheus"]["volumes"]
    assert prometheus["rule_files"] == ["/etc/prometheus/rules/*.yml"]
    (alerting,) = prometheus["alerting"]["alertmanagers"]
    assert alerting["static_configs"] == [{"targets": ["alertmanager:9093"]}]


def test_prometheus_keeps_exemplars_and_the_page_documents_the_flag():
    flag = "--enable-feature=exemplar-storage"
    assert flag in SERVICES["prometheus"]["command"]
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    assert flag in page
    assert "enableFeatures: [exemplar-storage]" in page.split("## Kubernetes")[1]


def test_grafana_finds_its_dashboards_and_data_sources():
    mounted = {volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert "../grafana/provisioning:/etc/grafana/provisioning:ro" in SERVICES["grafana"]["volumes"]
    served = {
        f"http://{name}:{port.split(':')[-1]}"
        for name, service in SERVICES.items()
        for port in service.get("ports", [])
    }
    for file in (ROOT / "deploy" / "grafana" / "provisioning").glob("*/*.yml"):
        provisioned = yaml.safe_load(file.read_text("utf-8"))
        for provider in provisioned.get("providers", []):
            assert provider["options"]["path"] in mounted
        for source in provisioned.get("datasources", []):
            assert source["url"] in served
        for contact in provisioned.get("contactPoints", []):
            for receiver in contact["receivers"]:
                assert receiver["settings"]["url"] in served


@pytest.mark.promtool
def test_promtool_accepts_the_configuration():
    promtool = shutil.which("promtool")
    assert promtool, "promtool is not there: make system"
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", FOLDER / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def amtool(file):
    """Exit code and output of the tool of Alertmanager for a configuration."""
    program = shutil.which("amtool")
    assert program, "amtool is not there: make system"
    done = subprocess.run(
        [program, "check-config", file], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.promtool
def test_amtool_accepts_the_configuration_and_rejects_a_misspelt_one(tmp_path):
    file = FOLDER / "alertmanager.yml"
    code, output = amtool(file)
    assert code == 0, output
    other = tmp_path / "alertmanager.yml"
    other.write_text(file.read_text("utf-8").replace("group_wait", "group_wiat"))
    code, output = amtool(other)
    assert code != 0
    assert "group_wiat" in output


def test_alertmanager_reads_mounted_files_groups_by_labels_and_notifies_no_receiver():
    service = SERVICES["alertmanager"]
    (mounted,) = [one for one in service["volumes"] if one.startswith("./alertmanager.yml:")]
    assert f"--config.file={mounted.split(':')[1]}" in service["command"]
    configuration = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))
    assert configuration["receivers"] == [{"name": configuration["route"]["receiver"]}]
    text = " ".join(json.dumps(rule) for rule in rules_of("alert").values())
    for label in configuration["route"]["group_by"]:
        assert label == "alertname" or f"$labels.{label}" in text


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with the settings of the file, apart from its addresses and its directory."""
    own = {"NODE_ID", "PROCESS_ROLES", "LISTENERS", "ADVERTISED_LISTENERS", "LOG_DIRS"}
    own |= {"LISTENER_SECURITY_PROTOCOL_MAP", "INTER_BROKER_LISTENER_NAME"}
    own |= {"CONTROLLER_LISTENER_NAMES", "CONTROLLER_QUORUM_VOTERS"}
    given = {
        name.removeprefix("KAFKA_"): value
        for name, value in SERVICES["kafka"]["environment"].items()
    }
    assert own <= set(given)
    properties = {
        name.lower().replace("_", "."): value for name, value in given.items() if name not in own
    }
    with Broker(tmp_path_factory.mktemp("compose"), properties=properties) as broker:
        yield broker


@pytest.mark.kafka
@pytest.mark.xdist_group("brokers")
def test_commands_of_the_file_work_on_a_broker_with_its_settings(broker, capsys):
    def command(name):
        return [word.replace("kafka:19092", broker.bootstrap) for word in SERVICES[name]["command"]]

    assert main(command("topics")) == 0
    assert "created rankings" in capsys.readouterr().out
    assert main(command("topics")) == 0, "a second start finds everything there"
    source = next(word for word in command("evaluator") if word.startswith("--source"))
    assert main(["check", source]) == 0
    assert main([*command("evaluator"), "--until-end", "--set=http_port=0"]) == 0
