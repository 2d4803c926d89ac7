"""`status` and `node` say which nodes the policy's scope protects, and by which pod."""

import json
from collections.abc import Callable
from typing import Any

from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import fleetmend
from tests.harness.services import service_on
from tests.workers.cli.conftest import POOL
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress
from workers.lab.kubelet.spec import NodeKind


def ask(lab: LabAddress, *words: str) -> Any:
    answer = fleetmend(lab, *words, "--json")
    assert answer.code == ExitCode.OK, answer.err
    return json.loads(answer.out)


def test_a_node_that_runs_a_service_of_ours_is_shown_as_protected_with_the_pod(
    lab: LabAddress, cluster: Cluster, nodes: TestNodes, unique: Callable[[str], str]
) -> None:
    host, other = nodes.add_many(["a", "b"], POOL, kind=NodeKind.LIGHT)
    with service_on(cluster, host, unique("svc")):
        status = ask(lab, "status")
        rows = {row["node"]: row["protected"] for row in status["nodes"]}
        node = ask(lab, "node", host)["node"]
        shown = fleetmend(lab, "status").out
    assert "delete the pod" in rows[host]
    assert rows[other] == ""
    assert node["protected"] == rows[host]
    assert status["protection_unknown"] == ""
    assert "protected: Node " + host in shown
    assert ask(lab, "node", host)["node"]["protected"] == "", "the service is gone"
