"""The chart renders to what Kubernetes accepts, and runs nobody as root."""

from __future__ import annotations

import base64
import re
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from chart_rendering import CHART, NAMESPACE, Manifest, find, notes, pods, render

VARIANTS: dict[str, Manifest] = {
    "defaults": {},
    "given": {
        "fullnameOverride": "weft-of-team-a",
        "image": {"repository": "weft", "tag": "1", "pullPolicy": "Always", "pullSecrets": ["pull"]},
        "auth": {"existingSecret": "own"},
        "data": {"existingClaim": "datasets", "mountPath": "/mnt/data"},
        "snapshots": {"existingClaim": "saved"},
        "server": {
            "port": 9000,
            "service": {"type": "NodePort", "annotations": {"a": "b"}},
            "persistence": {"enabled": True, "existingClaim": "kept"},
            "env": {"WEFT_SERVER_LOST_AFTER_S": 20, "OMP_NUM_THREADS": "1"},
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "podAnnotations": {"x": "y"},
        },
        "shards": {"replicas": 4, "ports": {"first": 9001, "last": 9064}, "env": {"WEFT_SHARD_SILENCE_S": 10}},
        "workers": {
            "replicas": 8,
            "device": "auto",
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
            "env": {"WEFT_WORKER_COMPUTE_THREADS": 2},
            "affinity": {"podAntiAffinity": {}},
        },
    },
    "small": {
        "server": {"persistence": {"enabled": False}},
        "shards": {"replicas": 1},
        "workers": {"replicas": 1},
        "auth": {"token": "a-token-of-16-ch"},
        "snapshots": {"location": "s3://bucket/weft"},
        "networkPolicy": {"enabled": False},
    },
}

variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


@variants
@pytest.mark.parametrize("version", ["1.27", "1.32", "1.37"])
def test_kubernetes_accepts_every_manifest(values: Manifest, version: str) -> None:
    manifests = render(values)
    assert len(manifests) >= 6
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_manifest_that_kubernetes_refuses_is_found() -> None:
    service = find(render(), "Service", "server")
    service["spec"]["ports"][0]["port"] = "http"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.32", strict=True)


@variants
def test_helm_finds_nothing_to_complain_of(values: Manifest) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@variants
def test_no_container_runs_as_root_or_writes_its_image(values: Manifest) -> None:
    for pod in pods(render(values)).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@variants
def test_every_container_has_probes_and_resources(values: Manifest) -> None:
    for component, pod in pods(render(values)).items():
        (container,) = pod["containers"]
        assert {"startupProbe", "livenessProbe"} <= container.keys(), component
        assert container["resources"], component
        assert ("readinessProbe" in container) == (component == "server")


def test_a_server_that_is_not_ready_is_reached_and_not_restarted() -> None:
    """It says with `/readyz` that its disk is full, say: a restart makes no room, and its jobs go on meanwhile."""
    manifests = render({})
    (container,) = pods(manifests)["server"]["containers"]
    paths = {name: probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    (service,) = (each for each in manifests if each["kind"] == "Service" and "server" in each["metadata"]["name"])
    assert service["spec"]["publishNotReadyAddresses"] is True


@variants
def test_services_select_pods_and_name_ports_that_they_have(values: Manifest) -> None:
    manifests = render(values)
    templates = [each["spec"]["template"] for each in manifests if each["kind"] in {"Deployment", "StatefulSet"}]
    for service in (each for each in manifests if each["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        (template,) = (each for each in templates if selector <= each["metadata"]["labels"].items())
        own = {port["name"] for each in template["spec"]["containers"] for port in each.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"].get("ports", [])} <= own


@variants
def test_every_volume_and_secret_that_is_used_is_there(values: Manifest) -> None:
    manifests = render(values)
    made = {each["metadata"]["name"] for each in manifests if each["kind"] in {"Secret", "PersistentVolumeClaim"}}
    given = {"own", "datasets", "kept", "saved"}
    for pod in pods(manifests).values():
        volumes = {each["name"]: each for each in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            used = [each["valueFrom"]["secretKeyRef"]["name"] for each in container["env"] if _is_secret(each)]
            assert used
            assert set(used) <= made | given
        claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes.values() if _is_claim(each)}
        assert claims <= made | given


def _is_secret(variable: Manifest) -> bool:
    return "secretKeyRef" in variable.get("valueFrom", {})


def _is_claim(volume: Manifest) -> bool:
    return "persistentVolumeClaim" in volume


def test_the_token_is_random_or_the_one_that_was_given() -> None:
    made = {_token(render()) for _ in range(2)}
    assert len(made) == 2
    assert all(len(token) == 40 for token in made)
    assert _token(render(VARIANTS["small"])) == "a-token-of-16-ch"
    assert not [each for each in render(VARIANTS["given"]) if each["kind"] == "Secret"]


def _token(manifests: list[Manifest]) -> str:
    return base64.b64decode(find(manifests, "Secret", "server")["data"]["token"]).decode()


def test_one_server_writes_and_its_claim_outlives_the_release() -> None:
    manifests = render()
    server = find(manifests, "Deployment", "server")["spec"]
    assert (server["replicas"], server["strategy"]) == (1, {"type": "Recreate"})
    claim = find(manifests, "PersistentVolumeClaim", "server")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_only_workers_reach_shards() -> None:
    policy = find(render(), "NetworkPolicy", "shard")["spec"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    assert rule["ports"] == [{"protocol": "TCP", "port": 8471, "endPort": 8570}]
    environment = {each["name"]: each.get("value") for each in pods(render())["shard"]["containers"][0]["env"]}
    assert environment["WEFT_SHARD_BIND"] == "tcp://0.0.0.0:8471-8570"
    assert environment["WEFT_SHARD_ADVERTISE"].endswith(f"-shard.{NAMESPACE}.svc")


def test_names_are_those_that_the_notes_tell() -> None:
    names = {each["metadata"]["name"] for each in render()}
    told = notes()
    assert f"--namespace {NAMESPACE}" in told
    for kind, name in re.findall(r"(service/|get secret )([a-z-]+)", told):
        assert name in names, kind


def test_a_long_release_name_still_fits_labels() -> None:
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render({}, name="a" * 53, namespace=NAMESPACE)
    for path, text in texts.items():
        for manifest in yaml.safe_load_all(text) if path.endswith(".yaml") else ():
            if manifest:
                assert len(manifest["metadata"]["name"]) <= 52, path
                assert all(len(str(value)) <= 63 for value in manifest["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"worker": {}}, "worker"),
        ({"workers": {"replica": 1}}, "replica"),
        ({"workers": {"replicas": -1}}, "replicas"),
        ({"workers": {"replicas": "two"}}, "replicas"),
        ({"workers": {"device": "gpu"}}, "device"),
        ({"workers": {"env": {"WEFT_WORKER_TOKEN": "x"}}}, "WEFT_WORKER_TOKEN"),
        ({"server": {"port": 80}}, "port"),
        ({"server": {"env": {"not a name": "x"}}}, "not a name"),
        ({"server": {"persistence": {"size": "plenty"}}}, "size"),
        ({"auth": {"token": "short"}}, "token"),
        ({"data": {"mountPath": "/tmp"}}, "mountPath"),
        ({"data": {"mountPath": "relative"}}, "mountPath"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"fullnameOverride": "Not_A_Name"}, "fullnameOverride"),
    ],
)
def test_a_value_that_is_wrong_is_refused_by_name(values: Manifest, field: str) -> None:
    with pytest.raises(helm_python.HelmError, match=field):
        render(values)


def test_the_schema_describes_every_value_and_the_defaults_are_legal() -> None:
    with helm_python.Chart.load(CHART) as chart:
        schema, values = chart.schema, chart.values
    assert schema is not None
    _described(schema, values, "")
    assert render()


def _described(schema: dict[str, Any], values: Manifest, where: str) -> None:
    for name, value in values.items():
        assert name in schema["properties"], f"{where}/{name}"
        if isinstance(value, dict) and "properties" in schema["properties"][name]:
            _described(schema["properties"][name], value, f"{where}/{name}")


@pytest.mark.parametrize(
    ("variant", "location"), [("defaults", ""), ("given", "/snapshots"), ("small", "s3://bucket/weft")]
)
def test_snapshots_are_kept_where_every_pod_reaches_them_or_nowhere(variant: str, location: str) -> None:
    found = pods(render(VARIANTS[variant]))
    env = {each["name"]: each.get("value") for each in found["server"]["containers"][0]["env"]}
    assert env["WEFT_SERVER_SNAPSHOTS"] == location
    for pod in found.values():
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        assert ("snapshots" in mounts) == (location == "/snapshots")
        assert not mounts.get("snapshots", {}).get("readOnly")
