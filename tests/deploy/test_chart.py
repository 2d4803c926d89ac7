"""The chart as people use it: its values are checked by name, and its pods have the least that they need."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from activities.node_tasks.pod import TASK_LABEL
from tests.deploy.rendered import (
    CHART,
    GPU_ACCESS,
    NAMESPACE,
    Object,
    helm,
    of_kind,
    render,
    template,
    with_required,
)
from workers.control.settings import read_settings
from workers.watch.settings import WatchSettings
from workflows.model.policy import Policy

SMALL: Final = {
    "policy": None,
    "networkPolicy": {"enabled": False},
    "flowControl": {"enabled": False},
    "karpenter": {"enabled": False},
    "agent": {"enabled": False},
    "uninstall": {"handOver": False},
}
LARGE: Final = {
    "image": {
        "repository": "registry.example:5000/team/fleetmend",
        "digest": f"sha256:{'a' * 64}",
        "pullSecrets": ["registry"],
    },
    "policy": {"pools": [{"name": "train", "selector": {"pool": "train"}, "expected_gpus": 8}]},
    "protectedNamespaces": ["temporal", "etcd"],
    "temporal": {"secret": "elsewhere", "configFile": "temporal.toml", "profile": "prod"},
    "operators": {"users": ["ann@example.com"], "groups": ["gpu:crew"]},
    "watch": {"tolerations": [{"key": "infra", "operator": "Exists"}], "nodeSelector": {"a": "b"}},
    "worker": {"env": {"FLEETMEND_LOG_LEVEL": "debug"}, "gracefulShutdownS": 90},
    "agent": {
        "sources": ["nvml", "network"],
        "runtimeClassName": "nvidia",
        "affinity": {"nodeAffinity": {}},
    },
    "networkPolicy": {
        "apiServerCIDRs": ["10.0.0.0/8"],
        "temporalCIDRs": ["192.0.2.0/24"],
        "temporalPorts": [443],
        "extraEgress": [{"ports": [{"port": 4318}]}],
    },
}
VALUES: Final = [
    pytest.param({}, id="defaults"),
    pytest.param(SMALL, id="small"),
    pytest.param(LARGE, id="large"),
    pytest.param(GPU_ACCESS, id="gpu access"),
]


def workloads(values: Object) -> Iterator[Object]:
    return of_kind(render(values), "Deployment", "DaemonSet", "Job")


def pod(name: str, values: Object | None = None) -> Object:
    """The pod's spec of one workload."""
    found = {w["metadata"]["name"]: w for w in workloads(values or {})}
    spec: Object = found[f"fleetmend-{name}"]["spec"]["template"]["spec"]
    return spec


def variables(spec: Object) -> dict[str, Any]:
    (container,) = spec["containers"]
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


@pytest.mark.parametrize("values", VALUES)
def test_helm_lint_finds_nothing(values: Object) -> None:
    answer = helm("lint", "--strict", str(CHART), values=with_required(values))
    assert answer.code == 0, answer.output + answer.error


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cluster": ""}, "cluster is not set: the name of this cluster in Temporal, --set"),
        ({"image": {"repository": ""}}, "image.repository is not set: where the image of"),
        ({"cluster": "a/b"}, "at '/cluster'"),
        ({"wach": {"replicas": 3}}, "additional properties 'wach' not allowed"),
        ({"watch": {"replica": 3}}, "at '/watch': additional properties 'replica' not allowed"),
        ({"worker": {"replicas": "two"}}, "at '/worker/replicas': got string, want integer"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"agent": {"sources": ["smi"]}}, "at '/agent/sources/0'"),
        ({"agent": {"env": {"a b": "c"}}}, "at '/agent/env'"),
        ({"protectedNamespaces": ["kube_system"]}, "at '/protectedNamespaces/0'"),
        ({"protectedNamespaces": list("abcdefgh")}, "at '/protectedNamespaces'"),
        ({"nodeTasks": {"runtimeClassName": "it's"}}, "at '/nodeTasks/runtimeClassName'"),
        ({"dcgm": {"hostEngine": "unix:///run/dcgm.sock"}}, "at '/dcgm/hostEngine'"),
        ({"temporal": {"apiKey": "s3cret"}}, "additional properties 'apiKey' not allowed"),
        ({"policy": "pools: []"}, "at '/policy': got string, want null or object"),
        ({"networkPolicy": {"temporalPorts": [0]}}, "at '/networkPolicy/temporalPorts/0'"),
    ],
    ids=lambda case: json.dumps(case)[:40] if isinstance(case, dict) else "",
)
def test_a_wrong_value_is_refused_by_its_name(values: Object, said: str) -> None:
    answer = template(values)
    assert answer.code != 0
    assert said in answer.error


@pytest.mark.parametrize(
    ("values", "namespace", "said"),
    [
        ({}, "default", "Mind: it is in namespace default"),
        ({"watch": {"replicas": 0}}, NAMESPACE, "watch.replicas is 0"),
        ({"worker": {"replicas": 0}}, NAMESPACE, "worker.replicas is 0"),
        ({"uninstall": {"deadlineS": 600}}, NAMESPACE, "helm uninstall --timeout 660s"),
    ],
)
def test_a_value_that_is_allowed_and_seldom_meant_is_said(
    values: Object, namespace: str, said: str
) -> None:
    assert "Mind:" not in notes({}, NAMESPACE)
    assert said in notes(values, namespace)


def test_whoever_has_the_secret_already_is_not_told_to_make_it_again() -> None:
    told = notes({"temporal": {"secret": "elsewhere"}}, NAMESPACE)
    asked = told.index(f"kubectl -n {NAMESPACE} get secret elsewhere\n")
    condition = told.index("If it is not there yet:")
    made = told.index(f"kubectl -n {NAMESPACE} create secret generic elsewhere ")
    assert asked < condition < made


def notes(values: Object, namespace: str) -> str:
    """What helm tells whoever has installed the chart."""
    answer = helm(
        *("install", "care", str(CHART), "--namespace", namespace, "--dry-run=client"),
        values=with_required(values),
    )
    assert answer.code == 0, answer.error
    return answer.output.partition("NOTES:")[2]


def test_every_value_has_its_meaning_beside_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    told = [i for i, line in enumerate(lines) if line.lstrip().startswith("#")]
    for number, line in enumerate(lines):
        if re.match(r"[a-z]\w*:", line):
            assert number - 1 in told, f"values.yaml:{number + 1}"
    schema = json.loads((CHART / "values.schema.json").read_text())
    given = yaml.safe_load("\n".join(lines))
    assert set(given) == set(schema["properties"]) - {"global"}
    for name, value in given.items():
        if isinstance(value, dict) and name != "policy":
            assert set(value) == set(schema["properties"][name]["properties"]), name


@pytest.mark.parametrize("values", VALUES)
def test_every_container_has_the_least_that_it_needs(values: Object) -> None:
    for workload in workloads(values):
        name = workload["metadata"]["name"]
        spec = workload["spec"]["template"]["spec"]
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert container["resources"]["limits"]["memory"], name
            if security.get("privileged"):
                assert name == "fleetmend-agent"
                continue
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            profile = security.get("seccompProfile") or spec["securityContext"]["seccompProfile"]
            assert profile == {"type": "RuntimeDefault"}, name
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in spec, name
        if name != "fleetmend-agent":
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert not any("hostPath" in volume for volume in spec["volumes"])


def test_only_the_kernel_log_makes_the_agent_privileged() -> None:
    def security(sources: list[str]) -> Object:
        (container,) = pod("agent", {"agent": {"sources": sources}})["containers"]
        found: Object = container["securityContext"]
        return found

    assert security(["kernel-log", "nvml"])["privileged"] is True
    assert "privileged" not in security(["nvml", "dcgm", "network"])


def test_the_agent_sees_the_host_and_writes_nothing_there() -> None:
    spec = pod("agent")
    (container,) = spec["containers"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert "envFrom" not in container, "Temporal's credentials are not for nodes"


@pytest.mark.parametrize("values", VALUES)
def test_every_object_has_the_recommended_labels(values: Object) -> None:
    wanted = {"name", "instance", "version", "managed-by", "part-of"}
    for item in render(values):
        for found in [item, *item.get("items", [])]:
            if found["kind"] == "List":
                continue
            labels = found["metadata"]["labels"]
            assert wanted <= {k.removeprefix("app.kubernetes.io/") for k in labels}, found
            assert labels["app.kubernetes.io/instance"] == "care"


@pytest.mark.parametrize("name", ["watch", "worker"])
def test_health_is_served_on_the_pods_own_address(name: str) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    given = variables(spec)
    names = [v["name"] for v in container["env"]]
    listen = f"FLEETMEND_{name.upper()}_LISTEN"
    assert given["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    # A kubelet expands only what stands before.
    assert names.index("POD_IP") < names.index(listen)
    (port,) = container["ports"]
    assert given[listen] == f"$(POD_IP):{port['containerPort']}"
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]


def test_the_processes_understand_what_the_pods_tell_them() -> None:
    def environment(name: str) -> dict[str, str]:
        given = variables(pod(name, LARGE)) | {"POD_IP": "fd00::7"}
        return {k: str(v).replace("$(POD_IP)", "fd00::7") for k, v in given.items()}

    watch = WatchSettings.from_environment(environment("watch"))
    assert (watch.cluster, watch.listen and watch.listen.host) == ("here", "fd00::7")
    worker = read_settings(environment("worker"))
    assert (worker.cluster, worker.listen and worker.listen.port) == ("here", 9473)
    assert worker.graceful_shutdown_s == 90
    for name in ("watch", "worker"):
        assert environment(name)["FLEETMEND_NAMESPACE"] == NAMESPACE


def test_a_worker_may_end_its_steps_before_it_is_killed() -> None:
    for values, steps_s in (({}, 10), (LARGE, 90)):
        assert pod("worker", values)["terminationGracePeriodSeconds"] == steps_s + 20


def test_temporal_is_known_from_the_secret_alone() -> None:
    spec = pod("worker", LARGE)
    (container,) = spec["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "elsewhere"}}]
    given = variables(spec)
    assert given["TEMPORAL_CONFIG_FILE"] == "/etc/fleetmend/temporal/temporal.toml"
    assert given["TEMPORAL_PROFILE"] == "prod"
    (mount,) = container["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/fleetmend/temporal", True)
    assert not [w for w in render(LARGE) if w["kind"] == "Secret"]


def test_watch_and_worker_are_two_on_two_hosts_and_go_one_at_a_time() -> None:
    for workload in of_kind(render(), "Deployment"):
        labels = workload["spec"]["selector"]["matchLabels"]
        assert workload["spec"]["replicas"] == 2
        rule = workload["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = rule["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
        (budget,) = (
            b
            for b in of_kind(render(), "PodDisruptionBudget")
            if b["spec"]["selector"]["matchLabels"] == labels
        )
        assert budget["spec"]["maxUnavailable"] == 1


def policy_map(values: Object) -> Object:
    (found,) = (m for m in of_kind(render(values), "ConfigMap") if "policy.yaml" in m["data"])
    stored: Object = yaml.safe_load(found["data"]["policy.yaml"])
    return stored


def test_the_policy_is_the_built_in_one_and_what_the_values_change() -> None:
    assert Policy.model_validate(policy_map({})) == Policy.model_validate(
        {"scope": {"protected_namespaces": [NAMESPACE]}}
    )
    changed = Policy.model_validate(policy_map(LARGE))
    assert [pool.name for pool in changed.pools] == ["train"]
    assert changed.scope.protected_namespaces == (NAMESPACE, "temporal", "etcd")


def test_a_namespace_that_the_policy_protects_may_be_seen() -> None:
    values = {"policy": {"scope": {"protected_namespaces": ["databases"]}}}
    wanted = {NAMESPACE, "databases"}
    assert set(policy_map(values)["scope"]["protected_namespaces"]) == wanted
    roles = [r for r in render(values) if r["metadata"]["name"] == "fleetmend-protected-pods"]
    assert {r["metadata"]["namespace"] for r in roles} == wanted


def test_more_protected_namespaces_than_the_policy_takes_are_refused_and_named() -> None:
    two = {"policy": {"scope": {"protected_namespaces": list("ef")}}}
    eight = Policy.model_validate(policy_map({**two, "protectedNamespaces": list("abcdeg")}))
    assert len(eight.scope.protected_namespaces) == 8
    refused = template({**two, "protectedNamespaces": list("abcdgh")})
    assert refused.code != 0
    assert f"they are 9 ({NAMESPACE}, a, b, c, d, g, h, e, f), and the policy takes 8" in (
        refused.error
    )


def test_another_policy_is_another_checksum_on_the_pods() -> None:
    def checksum(values: Object) -> str:
        (found,) = (w for w in workloads(values) if w["metadata"]["name"] == "fleetmend-watch")
        note: str = found["spec"]["template"]["metadata"]["annotations"][
            "fleetmend.io/policy-checksum"
        ]
        return note

    assert checksum({}) != checksum(LARGE)
    assert not [m for m in render(SMALL) if m["metadata"]["name"] == "fleetmend-policy"]


def test_what_leaves_stands_only_while_it_leaves() -> None:
    """Its rights are hooks before the deletion, taken away when it has ended, well or not."""
    ours = [o for o in render() if o["metadata"]["name"] == "fleetmend-leave"]
    kinds = "ClusterRole ClusterRoleBinding Job NetworkPolicy Role RoleBinding ServiceAccount"
    assert " ".join(sorted(o["kind"] for o in ours)) == kinds
    weights = {}
    for item in ours:
        if item["kind"] != "NetworkPolicy":
            notes = item["metadata"]["annotations"]
            assert notes["helm.sh/hook"] == "pre-delete"
            assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"]
            weights[item["kind"]] = int(notes["helm.sh/hook-weight"])
    assert all(weight < weights["Job"] for kind, weight in weights.items() if kind != "Job")
    (container,) = pod("leave")["containers"]
    assert container["command"] == ["fleetmend", "leave", "--yes"]
    assert not [o for o in render(SMALL) if o["metadata"]["name"] == "fleetmend-leave"]


def test_node_tasks_run_the_image_that_the_pods_run() -> None:
    (release,) = (m for m in of_kind(render(LARGE), "ConfigMap") if "image" in m["data"])
    image = release["data"]["image"]
    assert image == f"registry.example:5000/team/fleetmend@sha256:{'a' * 64}"
    for workload in workloads(LARGE):
        assert [c["image"] for c in workload["spec"]["template"]["spec"]["containers"]] == [image]
    for account in of_kind(render(LARGE), "ServiceAccount"):
        assert account["imagePullSecrets"] == [{"name": "registry"}]


def test_people_are_bound_where_the_account_for_automation_is() -> None:
    people = [("User", "ann@example.com"), ("Group", "gpu:crew")]
    bindings = [
        b
        for b in of_kind(render(LARGE), "RoleBinding", "ClusterRoleBinding")
        if "fleetmend-operator" in [s["name"] for s in b["subjects"]]
    ]
    # The cluster's and the namespace's, and the pods of three protected namespaces.
    assert len(bindings) == 5
    for binding in bindings:
        subjects = [(s["kind"], s["name"]) for s in binding["subjects"]]
        assert [s for s in subjects if s in people] == people, binding["metadata"]["name"]


def test_without_karpenter_no_right_speaks_of_it() -> None:
    def rights(values: Object) -> str:
        return json.dumps([r["rules"] for r in of_kind(render(values), "ClusterRole")])

    assert "karpenter.sh" in rights({})
    assert "karpenter.sh" not in rights(SMALL)


def test_node_tasks_speak_to_nobody_and_agents_not_to_temporal() -> None:
    found = {p["metadata"]["name"]: p["spec"] for p in of_kind(render(LARGE), "NetworkPolicy")}
    task = found["fleetmend-node-task"]
    assert task["podSelector"]["matchExpressions"] == [{"key": TASK_LABEL, "operator": "Exists"}]
    assert task["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(task)
    ports = {
        name: [port["port"] for rule in spec["egress"] for port in rule["ports"]]
        for name, spec in found.items()
        if "egress" in spec
    }
    assert ports["fleetmend-agent"] == [53, 53, 443, 6443]
    assert ports["fleetmend-worker"] == [53, 53, 443, 6443, 443, 4318]
    assert "fleetmend-diagnosis" not in found


def test_a_quarantine_waits_behind_nobody_and_holds_up_nobody() -> None:
    levels = {
        p["metadata"]["name"]: p["spec"]["limited"]
        for p in of_kind(render(), "PriorityLevelConfiguration")
    }
    assert all(level["borrowingLimitPercent"] == 0 for level in levels.values())
    schemas = {s["metadata"]["name"]: s["spec"] for s in of_kind(render(), "FlowSchema")}
    who = {
        subject["serviceAccount"]["name"]: spec["priorityLevelConfiguration"]["name"]
        for spec in schemas.values()
        for rule in spec["rules"]
        for subject in rule["subjects"]
    }
    assert who["fleetmend-watch"] == who["fleetmend-agent"] != who["fleetmend-worker"]
    # The built-in schema of all ServiceAccounts has 9000; the lower number is asked first.
    assert all(spec["matchingPrecedence"] < 9000 for spec in schemas.values())
