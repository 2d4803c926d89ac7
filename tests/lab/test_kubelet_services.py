"""What a Deployment of the fleetmend image needs of a node: sources, probes, addresses, releases.

On a real control plane: the node's own identity reads the ConfigMaps and Secrets of its pods, and the
real scheduler puts pods on the system node.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import KubeClient, PatchKind
from activities.kube.errors import Forbidden
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from tests.lab.conftest import IMAGE, LIMIT_S, NAMESPACE, Pods, ended
from workers.lab.address import LabAddress
from workers.lab.controlplane.kubeconfig import certificate_user, kubeconfig
from workers.lab.controlplane.pki import KeyPair, node_certificate
from workers.lab.kubelet.pod_logs import find_pod_logs
from workers.lab.kubelet.spec import ROLE_LABEL, SYSTEM_ROLE, NodeSpec

SERVER = """
import http.server, os, pathlib, signal, sys
here = pathlib.Path(os.environ["HOME"])
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/")
        self.send_response(200 if (here / name).exists() else 503)
        self.end_headers()
    def log_message(self, *args):
        pass
for name in sys.argv[1:]:
    (here / name).touch()
server = http.server.HTTPServer((os.environ["POD_IP"], 9471), Answers)
print(f"serving {server.server_address} {here}", flush=True)
signal.signal(15, lambda *_: os._exit(0))
server.serve_forever()
"""
"""Answers 200 for what is a file in its home, and 503 for all else."""
POD_IP = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


@pytest.fixture
def node(nodes: TestNodes) -> str:
    """A system node of the test's own."""
    spec = NodeSpec.system(nodes.unique("n"))
    nodes.added.append(spec.name)
    nodes.client.add_nodes([spec], await_agents=True)
    return spec.name


@pytest.fixture
def objects(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Makes ConfigMaps and Secrets that go with the test."""
    made: list[paths.ObjectPath] = []

    def make(plural: str, name: str, content: dict[str, str]) -> None:
        if plural == "secrets":
            content = {k: base64.b64encode(v.encode()).decode() for k, v in content.items()}
        folder = paths.collection_path("v1", plural, namespace=NAMESPACE)
        kind = {"secrets": "Secret", "configmaps": "ConfigMap"}[plural]
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": content}
        cluster.kube.create(folder, body)
        made.append(paths.object_path(folder, name))

    yield make
    for path in made:
        cluster.kube.delete(path, uid=None)


def _log(lab: LabAddress, name: str) -> str:
    return "".join(log.text() for log in find_pod_logs(lab.directory, NAMESPACE, name))


def _condition(pod: Any, kind: str) -> str:
    conditions = (pod or {}).get("status", {}).get("conditions") or []
    return next((c["status"] for c in conditions if c["type"] == kind), "")


def _state(pod: Any) -> Any:
    return ((pod or {}).get("status", {}).get("containerStatuses") or [{}])[0]


def _python(code: str, *arguments: str, **container: Any) -> dict[str, Any]:
    command = ["python", "-c", code, *arguments]
    return {"name": "main", "image": IMAGE, "command": command, **container}


def test_a_system_node_has_no_gpus_no_agent_and_no_pool(node: str, cluster: Cluster) -> None:
    body = cluster.kube.get(paths.node(node))
    assert body["metadata"]["labels"][ROLE_LABEL] == SYSTEM_ROLE
    assert "fleetmend.io/pool" not in body["metadata"]["labels"]
    assert "nvidia.com/gpu" not in body["status"]["capacity"]
    wait_until(
        lambda: not cluster.kube.get(paths.node(node))["spec"].get("taints"),
        LIMIT_S,
        "the node controller takes the taint of a node that was not ready yet off; no other stands",
    )
    assert cluster.pods_on(node) == []


def test_the_scheduler_puts_a_deployments_pods_on_the_system_node(
    node: str, pods: Pods, lab: LabAddress
) -> None:
    container = _python("print('hello from', __import__('os').environ['HOSTNAME'], flush=True)")
    name = pods.make(node, container, nodeName=None, nodeSelector={"kubernetes.io/hostname": node})
    assert pods.until_phase(name, "Succeeded")["spec"]["nodeName"] == node
    assert f"hello from {name}" in _log(lab, name)


def test_variables_and_files_come_from_config_maps_and_secrets(
    node: str, pods: Pods, objects: Callable[..., None], unique: Callable[[str], str]
) -> None:
    settings, keys = unique("settings"), unique("keys")
    objects("configmaps", settings, {"colour": "blue", "policy.yaml": "pools: []"})
    objects("secrets", keys, {"token": "s3cret"})
    code = (
        "import json, os, pathlib, stat; read = lambda p: pathlib.Path(p).read_text()\n"
        "told = [os.environ.get(k) for k in ('colour', 'TOKEN', 'NONE')]\n"
        "told += [read('/etc/p/policy.yaml'), read(os.environ['FILE'])]\n"
        "told += [oct(stat.S_IMODE(os.stat(os.environ['FILE']).st_mode))]\n"
        "(pathlib.Path('/scratch') / 'x').write_text('kept')\n"
        "open(os.environ['FLEETMEND_TERMINATION_LOG'], 'w').write(json.dumps(told))"
    )
    secret_key = {"secretKeyRef": {"name": keys, "key": "token"}}
    none = {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}
    container = _python(
        code,
        envFrom=[{"configMapRef": {"name": settings}}],
        env=[
            {"name": "TOKEN", "valueFrom": secret_key},
            {"name": "NONE", "valueFrom": none},
            {"name": "FILE", "value": "/etc/keys/given"},
        ],
        volumeMounts=[
            {"name": "policy", "mountPath": "/etc/p"},
            {"name": "keys", "mountPath": "/etc/keys"},
            {"name": "none", "mountPath": "/etc/none"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    )
    items = [{"key": "token", "path": "given"}]
    volumes = [
        {"name": "policy", "configMap": {"name": settings}},
        {"name": "keys", "secret": {"secretName": keys, "items": items}},
        {"name": "none", "secret": {"secretName": "none", "optional": True}},
        {"name": "scratch", "emptyDir": {}},
    ]
    pod = pods.until_phase(pods.make(node, container, volumes=volumes), "Succeeded")
    wanted = ["blue", "s3cret", None, "pools: []", "s3cret", "0o600"]
    assert json.loads(ended(pod)["message"]) == wanted


def test_a_source_that_is_missing_is_waited_for(
    node: str, pods: Pods, objects: Callable[..., None], unique: Callable[[str], str]
) -> None:
    settings = unique("late")
    container = _python("pass", envFrom=[{"configMapRef": {"name": settings}}])
    name = pods.make(node, container)
    wait_until(
        lambda: "not found" in str(_state(pods.get(name)).get("state")),
        LIMIT_S,
        "the container waits and says for what",
        saw=lambda: _state(pods.get(name)),
    )
    waiting = _state(pods.get(name))["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert f"configmap {settings!r} not found" in waiting["message"]
    objects("configmaps", settings, {"a": "b"})
    pods.until_phase(name, "Succeeded")


def test_a_changed_config_map_reaches_the_files_of_a_running_pod(
    node: str,
    pods: Pods,
    cluster: Cluster,
    lab: LabAddress,
    objects: Callable[..., None],
    unique: Callable[[str], str],
) -> None:
    settings = unique("settings")
    objects("configmaps", settings, {"a": "first"})
    code = (
        "import time, pathlib; seen = None\n"
        "while seen != 'second':\n"
        "    now = pathlib.Path('/etc/s/a').read_text()\n"
        "    if now != seen: print('saw', now, flush=True)\n"
        "    seen = now; time.sleep(0.05)"
    )
    container = _python(code, volumeMounts=[{"name": "s", "mountPath": "/etc/s"}])
    name = pods.make(node, container, volumes=[{"name": "s", "configMap": {"name": settings}}])
    wait_until(lambda: "saw first" in _log(lab, name), LIMIT_S, "the pod has read it")
    path = paths.config_map(NAMESPACE, settings)
    cluster.kube.patch(path, {"data": {"a": "second"}}, kind=PatchKind.MERGE)
    pods.until_phase(name, "Succeeded")


def test_a_node_reads_only_what_its_pods_name(
    node: str, lab: LabAddress, objects: Callable[..., None], unique: Callable[[str], str]
) -> None:
    keys = unique("keys")
    objects("secrets", keys, {"token": "s3cret"})
    own = _kubelets_client(lab, node)
    try:
        with pytest.raises(Forbidden):
            own.get(paths.object_path(_secrets(), keys))
    finally:
        own.close()


def _secrets() -> paths.CollectionPath:
    return paths.collection_path("v1", "secrets", namespace=NAMESPACE)


def _kubelets_client(lab: LabAddress, node: str) -> KubeClient:
    user = certificate_user(KeyPair(*node_certificate(lab.directory, node)))
    path = lab.paths.kubeconfigs / f"{node}.kubeconfig"
    path.write_text(kubeconfig(lab.api_url, lab.ca_file, user, namespace=NAMESPACE))
    return KubeClient.from_kubeconfig(path, process="test")


def test_init_containers_run_in_order_before_the_others(
    node: str, pods: Pods, lab: LabAddress
) -> None:
    inits = [
        {**_python("print('one', flush=True)"), "name": "first"},
        {**_python("print('two', flush=True)"), "name": "second"},
    ]
    name = pods.make(node, _python("print('three')"), initContainers=inits)
    pod = pods.until_phase(name, "Succeeded")
    first, second = (s["state"]["terminated"] for s in pod["status"]["initContainerStatuses"])
    assert first["finishedAt"] <= second["startedAt"]
    assert second["finishedAt"] <= ended(pod)["startedAt"]
    logs = {log.container: log.text() for log in find_pod_logs(lab.directory, NAMESPACE, name)}
    assert logs == {"first": "one\n", "second": "two\n", "main": "three\n"}


def test_a_failed_init_container_keeps_the_others_from_running(node: str, pods: Pods) -> None:
    inits = [{**_python("raise SystemExit(3)"), "name": "first"}]
    pod = pods.until_phase(pods.make(node, _python("pass"), initContainers=inits), "Failed")
    assert _condition(pod, "Initialized") == "False"
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert _state(pod)["state"]["waiting"]["reason"] == "PodInitializing"


def test_a_failed_init_container_is_tried_again(node: str, pods: Pods) -> None:
    code = "import os, pathlib; p = pathlib.Path(os.environ['HOME'], 'x'); old = p.exists(); p.touch(); raise SystemExit(not old)"
    inits = [{**_python(code), "name": "first"}]
    name = pods.make(node, _python("pass"), initContainers=inits, restartPolicy="OnFailure")
    pod = pods.until_phase(name, "Succeeded")
    assert pod["status"]["initContainerStatuses"][0]["restartCount"] == 1


def _probe(path: str, **more: Any) -> dict[str, Any]:
    patience = {"periodSeconds": 1, "timeoutSeconds": 5}
    return {"httpGet": {"path": path, "port": "health"}, **patience, **more}


def _serve(*present: str, **container: Any) -> dict[str, Any]:
    """A server on the pod's own address which has these files to begin with."""
    ports = [{"name": "health", "containerPort": 9471}]
    return _python(SERVER, *present, env=POD_IP, ports=ports, **container)


def _home(lab: LabAddress, name: str) -> Path:
    def line() -> str:
        log = _log(lab, name)
        return log if "serving" in log and log.endswith("\n") else ""

    return Path(wait_until(line, LIMIT_S, "it serves").split()[-1])


def test_readiness_follows_the_probe_both_ways(node: str, pods: Pods, lab: LabAddress) -> None:
    container = _serve(readinessProbe=_probe("/readyz", failureThreshold=1))
    name = pods.make(node, container)
    pods.until_phase(name, "Running")
    home = _home(lab, name)
    stays_true(lambda: _condition(pods.get(name), "Ready") == "False", 1.2, "it is not ready")
    for is_there, wanted in ((True, "True"), (False, "False")):
        (home / "readyz").touch() if is_there else (home / "readyz").unlink()
        for kind in ("Ready", "ContainersReady"):
            wait_until(
                lambda kind=kind, wanted=wanted: _condition(pods.get(name), kind) == wanted,  # type: ignore[misc]  # mypy infers no default argument
                LIMIT_S,
                f"{kind} is {wanted}",
            )
    assert _state(pods.get(name))["restartCount"] == 0


def test_two_pods_of_one_node_serve_on_the_same_port(
    node: str, pods: Pods, lab: LabAddress
) -> None:
    container = _serve("readyz", readinessProbe=_probe("/readyz"))
    names = [pods.make(node, container), pods.make(node, container)]
    for name in names:
        wait_until(
            lambda name=name: _condition(pods.get(name), "Ready") == "True",  # type: ignore[misc]  # as above
            LIMIT_S,
            f"{name} is ready",
            saw=lambda name=name: _log(lab, name),  # type: ignore[misc]  # as above
        )
    addresses = {pods.get(name)["status"]["podIP"] for name in names}
    assert len(addresses) == 2
    assert all(address.startswith("127.") for address in addresses)


def test_a_failing_liveness_probe_restarts_the_container(
    node: str, pods: Pods, lab: LabAddress
) -> None:
    container = _serve(
        "healthz",
        # Its start is given all the time that it needs.
        startupProbe=_probe("/healthz", failureThreshold=60),
        livenessProbe=_probe("/healthz", failureThreshold=2),
    )
    name = pods.make(node, container, restartPolicy="Always")
    home = _home(lab, name)
    wait_until(lambda: _state(pods.get(name)).get("started"), LIMIT_S, "it has started")
    (home / "healthz").unlink()
    wait_until(lambda: _state(pods.get(name))["restartCount"] == 1, LIMIT_S, "it was restarted")
    assert _state(pods.get(name))["lastState"]["terminated"]["exitCode"] == 0
    # The second run has made its file again, so it stays.
    wait_until(lambda: "running" in _state(pods.get(name))["state"], LIMIT_S, "it runs again")
    stays_true(lambda: _state(pods.get(name))["restartCount"] == 1, 2.5, "it stays")


def test_until_the_startup_probe_succeeds_no_other_is_asked(
    node: str, pods: Pods, lab: LabAddress
) -> None:
    container = _serve(
        startupProbe=_probe("/started", failureThreshold=60),
        livenessProbe=_probe("/started", failureThreshold=1),
    )
    name = pods.make(node, container)
    home = _home(lab, name)
    pods.until_phase(name, "Running")
    stays_true(lambda: not _state(pods.get(name))["started"], 2.5, "it has not started, and lives")
    (home / "started").touch()
    wait_until(lambda: _condition(pods.get(name), "Ready") == "True", LIMIT_S, "it has started")


def test_a_probe_the_lab_cannot_ask_is_refused_by_name(node: str, pods: Pods) -> None:
    probe = {"exec": {"command": ["true"]}}
    name = pods.make(node, _python("pass", livenessProbe=probe))
    wait_until(
        lambda: "only httpGet" in str(_state(pods.get(name)).get("state")),
        LIMIT_S,
        "the container waits and says why",
    )


def test_another_tag_runs_another_checkout(
    node: str, pods: Pods, lab: LabAddress, unique: Callable[[str], str]
) -> None:
    tag = unique("next")
    cli = lab.paths.images / tag / "workers" / "cli"
    cli.mkdir(parents=True)
    for folder in (cli.parent, cli):
        (folder / "__init__.py").touch()
    (cli / "__main__.py").write_text("import sys; print('the next release', sys.argv[1:])")
    container = {"name": "main", "image": f"fleetmend:{tag}", "args": ["watch"]}
    name = pods.make(node, container)
    pods.until_phase(name, "Succeeded")
    assert _log(lab, name) == "the next release ['watch']\n"


def test_a_tag_without_a_checkout_is_an_image_that_cannot_be_pulled(node: str, pods: Pods) -> None:
    name = pods.make(node, {"name": "main", "image": "fleetmend:none", "args": ["watch"]})
    wait_until(
        lambda: "is no release of this lab" in str(_state(pods.get(name)).get("state")),
        LIMIT_S,
        "the container waits and says why",
    )
    assert _state(pods.get(name))["state"]["waiting"]["reason"] == "ErrImagePull"


def test_probes_go_on_under_the_next_kubelet(
    node: str, nodes: TestNodes, pods: Pods, lab: LabAddress
) -> None:
    name = pods.make(node, _serve("readyz", readinessProbe=_probe("/readyz", failureThreshold=1)))
    wait_until(lambda: _condition(pods.get(name), "Ready") == "True", LIMIT_S, "it is ready")
    nodes.inject(node, "kubelet-dead")
    nodes.clear(node, "kubelet-dead")
    (_home(lab, name) / "readyz").unlink()
    wait_until(lambda: _condition(pods.get(name), "Ready") == "False", LIMIT_S, "it is not")
    assert _state(pods.get(name))["restartCount"] == 0
