"""A new node gets its first job only after its own run has found it well."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import JsonObject
from tests.harness.audit import WATCH, WORKER, AuditEvent, AuditLog, Wanted, audit
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.policies import write_policy
from tests.harness.processes import fleetmend
from tests.harness.waiting import wait_until
from tests.harness.work import NAMESPACE, Work
from workers.lab.address import LabAddress
from workers.lab.kubelet.spec import POOL_LABEL, NodeTaint
from workflows.model.remediation.admission import STARTUP_TAINT, TAINT_KEY

STARTUP = (NodeTaint(key=TAINT_KEY),)
LIMIT_S = 60.0
STARTS_WITHIN_S = 60.0
"""From the end of the taint to the running pod of a job that waits for it, on a loaded machine."""


@pytest.fixture
def witness(lab: LabAddress) -> AuditLog:
    return audit(lab)


@pytest.fixture
def newcomers(nodes: TestNodes, pool: str) -> Iterator[TestNodes]:
    """Nodes with the startup taint are added through this."""
    yield nodes
    nodes.remove_all()


def job(fleet: Fleet, work: Work, name: str, pool: str) -> JsonObject:
    """A pod that only a node of the pool would do for, as a whole."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": "7"}}}
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"work": name}},
        "spec": {
            "nodeSelector": {POOL_LABEL: pool},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "work", "image": "train:1", **limits}],
        },
    }
    created = fleet.cluster.kube.create(paths.pods(NAMESPACE), body)
    work.pods[name] = created["metadata"]["uid"]
    return created


def is_tainted(fleet: Fleet, node: str) -> bool:
    return STARTUP_TAINT in fleet.cluster.node(node).taints


def until_let_in(fleet: Fleet, node: str) -> None:
    wait_until(
        lambda: not is_tainted(fleet, node),
        LIMIT_S,
        f"{node} is let in",
        saw=lambda: (fleet.cluster.node(node), fleet.worker.tail(), fleet.watch.tail()),
    )


def bindings(witness: AuditLog, pod: str) -> list[AuditEvent]:
    """Where the scheduler put a pod."""
    return witness.events(Wanted(verb="create", resource="pods/binding", name=pod))


def told(witness: AuditLog, node: str, who: str) -> list[dict[str, Any]]:
    """Events about a Node."""
    found = witness.events(Wanted(who=who, verb="create", resource="events"))
    return [e.body for e in found if (e.body.get("involvedObject") or {}).get("name") == node]


def test_a_good_node_is_let_in_and_runs_the_job_that_waits(
    fleet: Fleet, newcomers: TestNodes, pool: str, work: Work, witness: AuditLog
) -> None:
    job(fleet, work, "first-job", pool)
    node = newcomers.add("good", pool, taints=STARTUP)
    until_let_in(fleet, node)
    wait_until(lambda: work.phase("first-job") == "Running", STARTS_WITHIN_S, "the job runs")
    assert fleet.cluster.has_baseline(node)
    kinds = [kind for kind in ("inventory", "diagnose") if witness.node_tasks(node, kind)]
    assert kinds == ["inventory", "diagnose"]
    writes = witness.node_writes(node)
    assert [e.who for e in writes] == [WORKER]
    assert writes[0].received_at <= bindings(witness, "first-job")[0].received_at
    wait_until(
        lambda: any(
            "admitted at level 2" in body["message"] for body in told(witness, node, WORKER)
        ),
        STARTS_WITHIN_S,
        "it is told",
    )


def test_one_that_lacks_a_gpu_never_runs_a_job_and_is_held_where_nobody_replaces_it(
    fleet: Fleet, newcomers: TestNodes, pool: str, work: Work, witness: AuditLog
) -> None:
    job(fleet, work, "no-job", pool)
    node = newcomers.add("short", pool, taints=STARTUP, gpus=7)
    wait_until(
        lambda: any("held" in body["reason"].lower() for body in told(witness, node, WORKER)),
        LIMIT_S,
        f"{node} is held",
        saw=lambda: (told(witness, node, WORKER), fleet.worker.tail()),
    )
    assert is_tainted(fleet, node)
    assert fleet.cluster.node(node).unschedulable
    assert not bindings(witness, "no-job")
    assert not witness.reboots(node)
    assert work.phase("no-job") == "Pending"
    assert not fleet.cluster.has_baseline(node)


def test_a_pool_that_is_not_armed_lets_nobody_in_and_says_so(
    fleet: Fleet, newcomers: TestNodes, pool: str, witness: AuditLog, tmp_path: Path
) -> None:
    fleet.cluster.disarm(pool)
    write_policy(tmp_path / "policy.yaml", [pool])
    node = newcomers.add("waits", pool, taints=STARTUP)
    wait_until(
        lambda: any(body["reason"] == "AdmissionWaits" for body in told(witness, node, WATCH)),
        LIMIT_S,
        "an Event says what the node waits for",
        saw=fleet.watch.tail,
    )
    words = [body["message"] for body in told(witness, node, WATCH)]
    assert any("not armed" in line for line in words)
    environment = {"FLEETMEND_POLICY": str(tmp_path / "policy.yaml")}
    answer = fleetmend(fleet.lab, "status", environment=environment)
    assert "not admitted yet" in answer.out
    assert "not armed" in answer.out
    assert is_tainted(fleet, node)
    assert not witness.node_writes(node)
    fleet.cluster.arm(pool)
    until_let_in(fleet, node)


def test_r35_a_taint_that_comes_back_at_once_is_examined_again(
    fleet: Fleet, newcomers: TestNodes, pool: str, witness: AuditLog
) -> None:
    """karpenter#1772: another writer puts the startup taint back while the run still closes."""
    node = newcomers.add("again", pool, taints=STARTUP)
    until_let_in(fleet, node)
    back = [{"key": TAINT_KEY, "effect": "NoSchedule"}]
    fleet.cluster.patch_node(node, {"spec": {"taints": back}})
    until_let_in(fleet, node)
    wait_until(lambda: len(witness.node_writes(node)) >= 2, LIMIT_S, "the log has both admissions")
    assert len(witness.node_writes(node)) == 2
    assert len(witness.node_tasks(node, "diagnose")) >= 2
