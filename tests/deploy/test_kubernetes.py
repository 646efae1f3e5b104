"""The overlays of Kubernetes, as kubectl builds them."""

import json
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from evaluator.adapters.http.server import PROBES
from evaluator.cli.arguments import new_parser
from evaluator.config import load_settings
from evaluator.mapping.document import read_document
from scripts.recipe import stages_of
from scripts.write_prometheus_rule import TARGET, prometheus_rule, rule_files
from tests.deploy.programs import run_program
from tests.deploy.rules import rules_of
from tests.tidy.tree import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("sidecar", "statefulset", "map")
_, IMAGE = stages_of((ROOT / "Dockerfile").read_text("utf-8"))


@cache
def kubectl():
    """The program, and whether its kustomize still calls a directory a base (before 2.1)."""
    program = shutil.which("kubectl")
    assert program, "kubectl is missing; `make system` installs it"
    command = [program, "version", "--client", "--output=json"]
    output = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return program, int(re.match(r"\d+", output["clientVersion"]["minor"])[0]) < 21


def directories_as_bases(folder):
    """Rewrites every kustomization below *folder* in the syntax of old versions."""
    for file in folder.rglob("kustomization.yaml"):
        text = yaml.safe_load(file.read_text("utf-8"))
        resources = text.pop("resources")
        text["bases"] = [name for name in resources if (file.parent / name).is_dir()]
        text["resources"] = [name for name in resources if name not in text["bases"]]
        file.write_text(yaml.safe_dump(text))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The text of every overlay."""
    program, is_old = kubectl()
    folder = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(FOLDER, folder)
    if is_old:
        directories_as_bases(folder)
    texts = {}
    for name in OVERLAYS:
        command = [program, "kustomize", folder / "overlays" / name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts[name] = done.stdout
    return texts


@pytest.fixture
def objects(built, overlay):
    """The objects of an overlay, by kind and name; tests only read them.

    A map is deployed beside another overlay, whose monitors select its pods.
    """
    found = objects_of(built[overlay])
    if overlay != "map":
        return found
    shared = ("PodMonitor", "PodDisruptionBudget", "ServiceAccount")
    beside = objects_of(built["statefulset"])
    return found | {of: one for of, one in beside.items() if of[0] in shared}


@cache
def objects_of(text):
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def only(objects, kind):
    (one,) = [one for (its_kind, _), one in objects.items() if its_kind == kind]
    return one


def pod(objects):
    """The template of the pods with an evaluator."""
    kinds = {kind for kind, _ in objects}
    return only(objects, "StatefulSet" if "StatefulSet" in kinds else "Deployment")["spec"][
        "template"
    ]


def container(objects):
    """The container of the evaluator, wherever it is in its pod."""
    spec = pod(objects)["spec"]
    both = [*spec.get("initContainers", []), *spec["containers"]]
    (one,) = [one for one in both if one["name"] == "evaluator"]
    return one


def built_of(*overlays):
    """Marks a test of these overlays."""

    def mark(test):
        return pytest.mark.kubectl(pytest.mark.parametrize("overlay", overlays)(test))

    return mark


every = built_of(*OVERLAYS)
both = built_of("sidecar", "statefulset")
sidecar = built_of("sidecar")
statefulset = built_of("statefulset")
of_map = built_of("map")


@pytest.mark.kubectl
@pytest.mark.parametrize("version", ["1.29.0", "1.37.0"])
def test_objects_have_no_member_unknown_to_kubernetes(built, version, tmp_path):
    file = tmp_path / "all.yaml"
    file.write_text("\n---\n".join(built[overlay] for overlay in OVERLAYS))
    done = run_program("kubernetes-validate", "--strict", "-k", version, file)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    without_schema = set(re.findall(r"Couldn't find schema for kind (\w+)", output))
    assert without_schema <= {
        "PodMonitor",
        "PrometheusRule",
        "ScaledObject",
        "TriggerAuthentication",
    }


@every
def test_the_evaluator_has_no_more_rights_than_it_needs(objects, overlay):
    spec = pod(objects)["spec"]
    assert ("ServiceAccount", spec["serviceAccountName"]) in objects
    assert spec["automountServiceAccountToken"] is False
    user, group = map(int, IMAGE.user.split(":"))
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == user
    assert spec["securityContext"]["fsGroup"] == group
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@every
def test_the_memory_limit_equals_the_request_and_cpu_has_no_limit(objects, overlay):
    resources = container(objects)["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    assert "cpu" not in resources["limits"]


@every
def test_its_settings_are_accepted_and_its_files_are_mounted(objects, overlay, tmp_path):
    spec, evaluator = pod(objects)["spec"], container(objects)
    (settings_map,) = [one for (kind, _), one in objects.items() if kind == "ConfigMap"]
    file = tmp_path / "settings.toml"
    file.write_text(settings_map["data"]["settings.toml"])
    settings = load_settings(config_file=file, environment={})

    mounts = {mount["name"]: mount for mount in evaluator["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == settings_map["metadata"]["name"]
    assert f"--config={mounts['settings']['mountPath']}/settings.toml" in evaluator["args"]
    if overlay == "map":
        assert settings.mapping == f"{mounts['settings']['mountPath']}/mapping.toml"
    else:
        assert settings.state_dir == mounts["state"]["mountPath"]
    for volume, path in (
        ("kafka", settings.sasl_password_file),
        ("kafka", settings.ssl_cafile),
        ("http", settings.http_token_file),
        ("http", settings.http_tls_certfile),
        ("http", settings.http_tls_keyfile),
    ):
        assert str(Path(path).parent) == mounts[volume]["mountPath"]
        assert mounts[volume]["readOnly"] is True
        assert volumes[volume]["secret"]["defaultMode"] == 0o440
    assert settings.security_protocol == "SASL_SSL"


def test_no_secret_is_in_the_tree():
    text = "".join(file.read_text("utf-8") for file in FOLDER.rglob("*.*"))
    assert not re.search(r"^kind: Secret$", text, re.MULTILINE)
    for file in FOLDER.rglob("settings.toml"):
        files = {n: v for n, v in tomllib.loads(file.read_text("utf-8")).items() if "file" in n}
        assert len(files) == 5
        assert all(value.startswith("/run/secrets/") for value in files.values())


@every
def test_probes_use_paths_without_a_token_and_a_declared_port(objects, overlay):
    evaluator = container(objects)
    (port,) = evaluator["ports"]
    assert port == {"name": "evaluator", "containerPort": 9464}
    probes = [value for name, value in evaluator.items() if name.endswith("Probe")]
    assert probes
    for probe in probes:
        assert probe["httpGet"]["path"] in PROBES
        assert probe["httpGet"]["port"] == port["name"]
        assert probe["httpGet"]["scheme"] == "HTTPS"


@every
def test_selectors_of_monitor_budget_and_policy_match_the_pods(objects, overlay):
    labels = pod(objects)["metadata"]["labels"]
    for kind, path in (
        ("PodMonitor", ("selector", "matchLabels")),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
    ):
        selector = only(objects, kind)["spec"][path[0]][path[1]]
        assert selector.items() <= labels.items(), kind


@both
def test_prometheus_reads_the_port_of_the_evaluator_with_its_token(objects, overlay):
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == container(objects)["ports"][0]["name"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"]["credentials"] == {"name": "evaluator-http", "key": "token"}


@pytest.mark.parametrize(
    "selector",
    [
        {"prometheus": "k8s", "role": "alert-rules"},  # the selector of rules of an older one
        {"release": "kube-prometheus-stack"},  # of the Helm chart, for rules and monitors
    ],
    ids=["older kube-prometheus", "chart"],
)
@both
def test_a_prometheus_that_selects_by_labels_takes_the_rules_and_the_monitor(
    objects, overlay, selector
):
    kinds = ["PrometheusRule"] if "role" in selector else ["PrometheusRule", "PodMonitor"]
    for kind in kinds:
        assert selector.items() <= only(objects, kind)["metadata"]["labels"].items()


@both
def test_kube_prometheus_has_the_rights_to_find_the_pods_and_no_others(objects, overlay):
    [rule] = only(objects, "Role")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    binding = only(objects, "RoleBinding")
    assert binding["roleRef"]["name"] == only(objects, "Role")["metadata"]["name"]
    [who] = binding["subjects"]
    assert (who["name"], who["namespace"]) == ("prometheus-k8s", "monitoring")
    sources = only(objects, "NetworkPolicy")["spec"]["ingress"][-1 if overlay == "sidecar" else 0]
    [peer] = sources["from"]
    labels = peer["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": who["namespace"]}


@both
def test_each_namespace_is_a_separate_job_that_the_rules_include(objects, overlay):
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    job, of_map = [one for one in endpoint["relabelings"] if one["targetLabel"] == "job"]
    assert job["sourceLabels"] == ["__meta_kubernetes_namespace"]
    assert job.keys() == {"sourceLabels", "targetLabel", "replacement"}, "the whole value is $1"
    [known] = re.findall(r'up\{job=~"(.+?)"\}', TARGET.read_text("utf-8"))
    for namespace in ("shop", "search"):
        for each in (job, of_map):
            assert re.fullmatch(known, each["replacement"].replace("$1", namespace))
    assert "$1" in job["replacement"]
    assert "$1" in of_map["replacement"] != job["replacement"]
    name = "__meta_kubernetes_pod_label_app_kubernetes_io_name"
    assert of_map["sourceLabels"] == ["__meta_kubernetes_namespace", name]
    labels = pod(objects)["metadata"]["labels"]
    assert not re.fullmatch(of_map["regex"], f"shop;{labels['app.kubernetes.io/name']}")


@of_map
def test_a_map_has_another_job_than_its_workers(objects, overlay):
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    relabeling = endpoint["relabelings"][-1]
    labels = pod(objects)["metadata"]["labels"]
    found = re.fullmatch(relabeling["regex"], f"shop;{labels['app.kubernetes.io/name']}")
    assert relabeling["replacement"].replace("$1", found[1]) == "shop/evaluator-map"


@of_map
def test_a_map_writes_the_topics_that_its_workers_read(objects, overlay):
    mapping = read_document(only(objects, "ConfigMap")["data"]["mapping.toml"], "mapping.toml")
    given = new_parser().parse_args(container(objects)["args"])
    settings = load_settings(environment={})
    assert given.command == ("map", "map")
    assert given.to == f"{settings.rankings_topic},{settings.judgments_topic}"
    assert {each.topic for each in mapping.logs.values()}.isdisjoint(given.to.split(","))


@every
def test_only_prometheus_reaches_the_evaluator(objects, overlay):
    rules = only(objects, "NetworkPolicy")["spec"]["ingress"]
    http_rules = [rule for rule in rules if {"protocol": "TCP", "port": 9464} in rule["ports"]]
    assert len(http_rules) == 1
    assert http_rules[0]["ports"] == [{"protocol": "TCP", "port": 9464}]
    assert http_rules[0]["from"][0].keys() == {"namespaceSelector", "podSelector"}
    assert all("ports" in rule for rule in rules)


@both
def test_at_most_one_pod_is_evicted_at_a_time(objects, overlay):
    budget = only(objects, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


@built_of("statefulset", "map")
def test_the_evaluator_may_connect_to_dns_and_its_broker_only(objects, overlay):
    policy = only(objects, "NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (source,) = [one for one in container(objects)["args"] if one.startswith("--source=")]
    kafka = int(source.rpartition(":")[2])
    reached = [
        (port["protocol"], port["port"]) for rule in policy["egress"] for port in rule["ports"]
    ]
    assert sorted(reached) == sorted([("UDP", 53), ("TCP", 53), ("TCP", kafka)])
    for rule in policy["egress"]:
        assert rule["to"], "an empty list lets it reach everything"
        assert all("podSelector" in peer for peer in rule["to"])


# Which one


@sidecar
def test_the_evaluator_is_a_native_sidecar(objects, overlay):
    assert container(objects) in pod(objects)["spec"]["initContainers"]
    assert container(objects)["restartPolicy"] == "Always"


@sidecar
def test_the_sidecar_has_only_a_liveness_probe(objects, overlay):
    assert {name for name in container(objects) if name.endswith("Probe")} == {"livenessProbe"}


@sidecar
def test_the_recommender_stays_reachable(objects, overlay):
    policy = only(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert {"ports": [{"protocol": "TCP", "port": 8080}]} in policy["ingress"]


@statefulset
def test_every_worker_has_a_volume_and_a_readiness_probe(objects, overlay):
    (claim,) = only(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] in {m["name"] for m in container(objects)["volumeMounts"]}
    assert container(objects)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert pod(objects)["spec"]["terminationGracePeriodSeconds"] >= 30


@both
def test_only_pods_with_stable_names_are_static_members(objects, overlay):
    names = {each["name"]: each for each in container(objects).get("env", ())}
    environment = {name: each.get("value", "pod-0") for name, each in names.items()}
    settings = load_settings(environment=environment)
    assert settings.group_instance_id == ("pod-0" if overlay == "statefulset" else None)
    if overlay == "statefulset":
        named = names["EVALUATOR_GROUP_INSTANCE_ID"]["valueFrom"]
        assert named == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert settings.session_timeout_ms == 30_000


@statefulset
def test_the_replica_count_is_between_one_and_the_partition_count(objects, overlay):
    scaled = only(objects, "ScaledObject")["spec"]
    workers = only(objects, "StatefulSet")
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    (partitions,) = set(re.findall(r"--partitions[ =](\d+)", page))
    assert scaled["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    assert scaled["minReplicaCount"] == 1
    assert scaled["maxReplicaCount"] == int(partitions)
    assert "idleReplicaCount" not in scaled
    assert "replicas" not in workers["spec"]
    group = load_settings(environment={}).group_id
    for trigger in scaled["triggers"]:
        assert trigger["metadata"]["consumerGroup"] == group
        assert trigger["metadata"]["allowIdleConsumers"] == "false"
        assert (
            trigger["authenticationRef"]["name"]
            == only(objects, "TriggerAuthentication")["metadata"]["name"]
        )
    assert {trigger["metadata"]["topic"] for trigger in scaled["triggers"]} == {
        "rankings",
        "judgments",
    }


# The rules


@pytest.mark.slow(alone=False)
def test_the_rules_of_kubernetes_are_up_to_date():
    assert TARGET.read_text("utf-8") == prometheus_rule(rule_files()), "run: make generate"
    groups = yaml.safe_load(TARGET.read_text("utf-8"))["spec"]["groups"]
    found = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert found
    assert found == set(rules_of("alert"))


def test_rule_groups_are_copied_completely_and_in_order(tmp_path):
    groups = [
        {"name": f"g{n}", "rules": [{"alert": f"A{n}", "expr": 'up{a="$x"} == 0', "for": "5m"}]}
        for n in range(3)
    ]
    (tmp_path / "1.yml").write_text(yaml.safe_dump({"groups": groups[:2]}))
    (tmp_path / "2.yml").write_text(yaml.safe_dump({"groups": groups[2:]}))
    written = yaml.safe_load(prometheus_rule([tmp_path / "1.yml", tmp_path / "2.yml"]))
    assert written["kind"] == "PrometheusRule"
    assert written["spec"]["groups"] == groups
