"""The processes of a lab as a table: command line, needs, proof of readiness, way to stop.

Owns the flags of every program and the small configuration files that go with them. Adding a
process to the lab is adding a row to `children_of`. Does not start anything: `supervisor.py` does.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Final

import yaml

from workers.lab.address import Component, LabAddress, write_atomically
from workers.lab.controlplane.child_spec import LOOPBACK, ChildSpec
from workers.lab.controlplane.kubeconfig import certificate_user, kubeconfig
from workers.lab.controlplane.pki import LabPki
from workers.lab.controlplane.probes import HttpsProbe, NoProbe, SocketProbe, TemporalProbe
from workers.lab.controlplane.programs import Programs, find_temporal
from workers.lab.controlplane.settings import LabPorts, LabSettings
from workers.lab.karpenter.process import KarpenterPlaces, karpenter_child
from workers.lab.paths import LabPaths

FLEET_MODULE: Final = "workers.lab.kubelet"
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"

# All that the lab needs; each one left out makes the start faster.
CONTROLLERS: Final = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "disruption-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "job-controller",
    "daemonset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
)

# Upserting an attribute that isn't registered wedges a workflow for good: all are registered
# before the server answers.
SEARCH_ATTRIBUTES: Final = {
    "FleetmendPhase": "Keyword",
    "FleetmendStep": "Keyword",
    "FleetmendFault": "Keyword",
    "FleetmendPool": "Keyword",
    "FleetmendNode": "Keyword",
    "FleetmendOutcome": "Keyword",
    "FleetmendHeld": "Bool",
}
TEMPORAL_DYNAMIC_CONFIG: Final = {
    # Timers fire when due; the default adds up to a second.
    "history.timerProcessorMaxTimeShift": "0s",
    # One partition: a task never waits in one that nobody polls at the moment.
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
}
AUDIT_LOG_MIB: Final = 2048
_GO: Final = {"GOGC": "400"}
"""Memory for time. Measured on 2 cores, of Temporal: a tenth of the CPU that twenty episodes take, for
130 MiB more; of the API server, with 300: ready after 3.0 s instead of 4.1 s, for 85 MiB more."""


def children_of(
    address: LabAddress, settings: LabSettings, ports: LabPorts, programs: Programs, pki: LabPki
) -> tuple[ChildSpec, ...]:
    """The processes of one lab, in the order in which they start; writes their config files."""
    paths = address.paths
    for folder in (paths.etcd, paths.logs, paths.kubeconfigs, paths.nodes):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    children = [
        _etcd(paths, programs),
        _api_server(paths, settings, ports, programs, pki),
        _controller_manager(paths, settings, ports, programs, pki),
        _scheduler(paths, ports, programs, pki),
    ]
    if settings.temporal:
        children.append(_temporal(paths, ports))
    if settings.karpenter:
        children.append(_karpenter(address, settings, ports, programs, pki))
    if settings.fleet and has_fleet():
        children.append(_fleet(address, settings))
    return tuple(children)


def has_fleet() -> bool:
    """Whether this installation has the simulated nodes' process."""
    try:
        return importlib.util.find_spec(f"{FLEET_MODULE}.__main__") is not None
    except ModuleNotFoundError:
        return False


def _etcd(paths: LabPaths, programs: Programs) -> ChildSpec:
    # Sockets in its own folder instead of ports: etcd's access is the folder's, without its own
    # PKI. Their names are relative to the folder and need the colon.
    client, peer, http = "unix://client.sock:0", "unix://peer.sock:0", "unix://http.sock:0"
    return ChildSpec(
        component=Component.ETCD,
        command=(
            str(programs[Component.ETCD]),
            "--name=lab",
            f"--data-dir={paths.etcd / 'data'}",
            f"--listen-client-urls={client}",
            f"--listen-client-http-urls={http}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=lab={peer}",
            "--heartbeat-interval=20",  # a lone member elects itself: the default costs 1 s
            "--election-timeout=100",
            # The kernel still writes what a killed etcd wrote; only a power cut would lose it.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--log-level=warn",
        ),
        probe=SocketProbe(paths.etcd / "client.sock:0"),
        folder=paths.etcd,
        log=paths.log(Component.ETCD),
        address=str(paths.etcd / "client.sock:0"),
        environment=_GO,
    )


def _api_server(
    paths: LabPaths, settings: LabSettings, ports: LabPorts, programs: Programs, pki: LabPki
) -> ChildSpec:
    configuration = paths.directory / "configuration"
    configuration.mkdir(mode=0o700, exist_ok=True)
    audit_policy = configuration / "audit-policy.yaml"
    authentication = configuration / "authentication.yaml"
    write_atomically(audit_policy, yaml.safe_dump(_AUDIT_POLICY, sort_keys=False))
    write_atomically(authentication, yaml.safe_dump(_AUTHENTICATION, sort_keys=False))
    kubelet_client = pki.api_server_as_kubelet_client
    return ChildSpec(
        component=Component.API_SERVER,
        command=(
            str(programs[Component.API_SERVER]),
            f"--bind-address={LOOPBACK}",
            # Given, because a machine without a default route has none to be found; the
            # endpoints of the Service `kubernetes` may not be loopback, so they are left out.
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",
            f"--secure-port={ports.api}",
            "--etcd-servers=unix://client.sock:0",
            f"--tls-cert-file={pki.api_server.certificate}",
            f"--tls-private-key-file={pki.api_server.key}",
            f"--client-ca-file={pki.ca_certificate}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            f"--kubelet-certificate-authority={pki.ca_certificate}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={pki.service_account_public_key}",
            f"--service-account-signing-key-file={pki.service_account_key}",
            f"--authentication-config={authentication}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--default-not-ready-toleration-seconds={settings.default_toleration_s}",
            f"--default-unreachable-toleration-seconds={settings.default_toleration_s}",
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={paths.audit_log}",
            f"--audit-log-mode={settings.audit_mode}",
            f"--audit-log-maxsize={AUDIT_LOG_MIB}",
            "--audit-log-maxbackup=2",
            "--profiling=false",
        ),
        probe=HttpsProbe(f"https://{LOOPBACK}:{ports.api}/readyz", pki.ca_certificate),
        folder=paths.etcd,
        log=paths.log(Component.API_SERVER),
        # No need of etcd: it waits for it by itself, so both load at the same time.
        address=f"https://{LOOPBACK}:{ports.api}",
        ports=(ports.api,),
        environment=_GO,
        stop_grace_s=1.0,  # it would drain for up to a minute
    )


def _controller_manager(
    paths: LabPaths, settings: LabSettings, ports: LabPorts, programs: Programs, pki: LabPki
) -> ChildSpec:
    own = _component_kubeconfig(paths, ports, pki, Component.CONTROLLER_MANAGER)
    return ChildSpec(
        component=Component.CONTROLLER_MANAGER,
        command=(
            str(programs[Component.CONTROLLER_MANAGER]),
            f"--kubeconfig={own}",
            f"--service-account-private-key-file={pki.service_account_key}",
            f"--root-ca-file={pki.ca_certificate}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            "--secure-port=0",
            f"--controllers={','.join(CONTROLLERS)}",
            # The default of 20 requests/s is most of a default start's time.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--node-monitor-period=500ms",
            f"--node-monitor-grace-period={settings.node_monitor_grace_s:g}s",
            "--node-startup-grace-period=30s",
        ),
        probe=NoProbe(),
        folder=paths.directory,
        log=paths.log(Component.CONTROLLER_MANAGER),
        needs=(Component.API_SERVER,),  # it gives up if that isn't there within 10 s
        environment=_GO,
    )


def _scheduler(paths: LabPaths, ports: LabPorts, programs: Programs, pki: LabPki) -> ChildSpec:
    own = _component_kubeconfig(paths, ports, pki, Component.SCHEDULER)
    return ChildSpec(
        component=Component.SCHEDULER,
        command=(
            str(programs[Component.SCHEDULER]),
            f"--kubeconfig={own}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ),
        probe=NoProbe(),
        folder=paths.directory,
        log=paths.log(Component.SCHEDULER),
        needs=(Component.API_SERVER,),
        environment=_GO,
    )


def _component_kubeconfig(
    paths: LabPaths, ports: LabPorts, pki: LabPki, component: Component
) -> Path:
    pair = {
        Component.CONTROLLER_MANAGER: pki.controller_manager,
        Component.SCHEDULER: pki.scheduler,
        Component.KARPENTER: pki.karpenter,
    }[component]
    path = paths.directory / "configuration" / f"{component.value}.kubeconfig"
    api_url = f"https://{LOOPBACK}:{ports.api}"
    user = certificate_user(pair)
    write_atomically(path, kubeconfig(api_url, pki.ca_certificate, user, namespace="default"))
    return path


def _temporal(paths: LabPaths, ports: LabPorts) -> ChildSpec:
    command = [
        str(find_temporal()),
        "server",
        "start-dev",
        f"--db-filename={paths.temporal_database}",
        # Without a flush for each transaction: a third less CPU for the same workflows. What a
        # killed server wrote is still written; and the file alone stays a whole backup.
        "--sqlite-pragma=synchronous=OFF",
        f"--ip={LOOPBACK}",
        f"--port={ports.temporal}",
        f"--ui-port={ports.temporal_ui}",
        "--ui-disable-news-fetch",
        "--log-level=warn",
    ]
    for name, kind in SEARCH_ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    for key, value in TEMPORAL_DYNAMIC_CONFIG.items():
        command += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    return ChildSpec(
        component=Component.TEMPORAL,
        command=tuple(command),
        probe=TemporalProbe(f"http://{LOOPBACK}:{ports.temporal_ui}", frozenset(SEARCH_ATTRIBUTES)),
        folder=paths.directory,
        log=paths.log(Component.TEMPORAL),
        address=f"{LOOPBACK}:{ports.temporal}",
        ports=(ports.temporal, ports.temporal_ui),
        stop_grace_s=4.0,
        environment=_GO,
    )


def _karpenter(
    address: LabAddress, settings: LabSettings, ports: LabPorts, programs: Programs, pki: LabPki
) -> ChildSpec:
    places = KarpenterPlaces(
        program=programs[Component.KARPENTER],
        crds=programs.karpenter_crds,
        kubeconfig=_component_kubeconfig(address.paths, ports, pki, Component.KARPENTER),
        health_port=ports.karpenter,
    )
    return karpenter_child(address, places, node_repair=settings.node_repair)


def _fleet(address: LabAddress, settings: LabSettings) -> ChildSpec:
    command = [sys.executable, "-P", "-m", FLEET_MODULE, "--lab", str(address.directory)]
    if settings.karpenter:
        command.append("--adopt")
    return ChildSpec(
        component=Component.FLEET,
        command=tuple(command),
        probe=SocketProbe(address.fleet_socket),
        folder=address.directory,
        log=address.paths.log(Component.FLEET),
        needs=(Component.API_SERVER,),
        address=str(address.fleet_socket),
        environment={"PYTHONUNBUFFERED": "1", "FLEETMEND_LAB": str(address.directory)},
        stop_grace_s=5.0,
    )


_AUTHENTICATION: Final = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthenticationConfiguration",
    "anonymous": {
        "enabled": True,
        "conditions": [{"path": path} for path in ("/readyz", "/livez", "/healthz")],
    },
}

# The tests' witness: who wrote what to which object, with bodies; reads are left out.
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "nonResourceURLs": ["*"]},
        # The API server's own bootstrap: half a megabyte of default roles.
        {"level": "None", "users": ["system:apiserver"]},
        {
            "level": "None",
            "resources": [
                {"group": "authentication.k8s.io", "resources": ["tokenreviews"]},
                {
                    "group": "authorization.k8s.io",
                    "resources": ["subjectaccessreviews", "selfsubjectaccessreviews"],
                },
            ],
        },
        {
            "level": "None",
            "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            "namespaces": ["kube-node-lease"],
        },
        # Bodies that hold credentials.
        {
            "level": "Metadata",
            "resources": [{"group": "", "resources": ["secrets", "serviceaccounts/token"]}],
        },
        # A kubelet's heartbeat: what it said is enough.
        {
            "level": "Request",
            "userGroups": ["system:nodes"],
            "resources": [{"group": "", "resources": ["nodes/status"]}],
        },
        # Evictions, cordons, marks, records: also what came of it, with the resourceVersion.
        {
            "level": "RequestResponse",
            "resources": [
                {
                    "group": "",
                    "resources": [
                        "nodes",
                        "nodes/status",
                        "pods",
                        "pods/eviction",
                        "pods/binding",
                        "configmaps",
                    ],
                },
                {"group": "fleetmend.io", "resources": ["*"]},
                {"group": "coordination.k8s.io", "resources": ["leases"]},
            ],
        },
        {"level": "Request"},
    ],
}
