"""`fleetmend leave`: every marked node is people's afterwards, nothing acts or wakes any more, and what stays is said.

In a lab of its own: it ends whatever runs in Temporal for its cluster, and disarms every pool.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.deploy.rendered import CHART, helm, with_required
from tests.harness.audit import audit
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.policies import write_policy
from tests.harness.processes import CliAnswer, fleetmend
from tests.harness.waiting import stays_true, wait_until
from workers.cli.outcome import ExitCode
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.chart import RELEASE
from workers.lab.controlplane.install import service_account_kubeconfig
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import AuditMode, LabSettings
from workers.temporal_connection import connect_or_explain, read_target
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.detection.rules import AGENT_CONDITIONS
from workflows.model.identity import sweep_workflow_id, task_queue, validation_workflow_id
from workflows.model.remediation.marks import EPISODE

pytestmark = pytest.mark.long

POOL = "leaving"
QUIET_S = 3.0
"""A report becomes a quarantine within milliseconds, while something is armed."""


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    directory = tmp_path_factory.mktemp("leave") / "lab"
    settings = LabSettings(cluster="leaving", audit_mode=AuditMode.BLOCKING)
    yield start_lab(directory, settings, detached=False)
    stop_lab(directory)


@pytest.fixture(scope="module")
def fleet(
    own_lab: LabAddress, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    # It stays quarantined and asks: there is nothing that it could try.
    patient = {"faults": {"gpu-lost": {"drain": "none", "ladder": []}}}
    with fleet_on(
        own_lab, own_cluster, tmp_path_factory.mktemp("fleet"), [POOL], patient
    ) as running:
        yield running


@pytest.fixture
def nodes(
    own_lab: LabAddress, own_cluster: Cluster, unique: Callable[[str], str]
) -> Iterator[TestNodes]:
    with test_nodes(own_lab, own_cluster, unique) as own:
        yield own


@pytest.fixture(scope="module")
def leaving(own_lab: LabAddress, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kubeconfig of the account under which the chart's hook runs it, with the hook's rights."""
    words = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE)
    values = with_required({"cluster": own_lab.cluster})
    answer = helm(*words, "-s", "templates/leave.yaml", values=values)
    assert answer.code == 0, answer.error
    api = LabApi(own_lab)
    for manifest in yaml.safe_load_all(answer.output):
        if manifest["kind"] != "Job":
            api.apply(manifest)
    api.close()
    path = tmp_path_factory.mktemp("account") / "leave.kubeconfig"
    service_account_kubeconfig(own_lab, NAMESPACE, "fleetmend-leave", path)
    return str(path)


@pytest.fixture
def leave(fleet: Fleet, leaving: str) -> Callable[..., CliAnswer]:
    """Runs the command as that account."""

    def run(*words: str, **environment: str) -> CliAnswer:
        given = {"KUBECONFIG": leaving, **environment}
        return fleetmend(fleet.lab, "leave", *words, "--json", environment=given)

    return run


async def temporal(lab: LabAddress) -> Client:
    return await connect_or_explain(read_target({"TEMPORAL_ADDRESS": lab.temporal_address}))


async def open_runs(lab: LabAddress) -> list[str]:
    query = f"TaskQueue = '{task_queue(lab.cluster)}' AND ExecutionStatus = 'Running'"
    return [run.id async for run in (await temporal(lab)).list_workflows(query)]


async def test_every_marked_node_is_handed_over_and_nothing_acts_any_more(
    fleet: Fleet, nodes: TestNodes, leave: Callable[..., CliAnswer]
) -> None:
    cluster, lab = fleet.cluster, fleet.lab
    sick, freed, well = nodes.add_many(["sick", "freed", "well"], POOL)
    for node in (sick, freed):
        nodes.inject(node, "gpu-lost")
    wait_until(lambda: cluster.marker(sick) and cluster.marker(freed), 30, "both are quarantined")
    cluster.uncordon(freed)

    before = audit(lab)
    shown = leave()
    assert shown.code == ExitCode.OK, shown.err
    becomes = {one["node"]: one["becomes"] for one in shown.json["nodes"]}
    assert becomes[sick] == "would stay cordoned, handed over"
    assert shown.json["done"] is False
    assert [event for event in before.writes() if event.who.endswith(":fleetmend-leave")] == []

    done = leave("--yes", "--reason", "the cluster goes")
    assert done.code == ExitCode.OK, done.out + done.err
    marker = cluster.marker(sick)
    assert marker is not None
    assert marker.handed_over.startswith("operator:the cluster goes (")
    assert cluster.node(sick).unschedulable
    assert EPISODE not in cluster.node(freed).annotations
    assert not cluster.node(freed).unschedulable
    assert cluster.marker(well) is None
    assert cluster.arming().armed == ()
    assert done.json["temporal"]["runs"] >= 2
    stays = " ".join(done.json["stays"])
    for named in ("GPUMachines", "the phase that it is in", *AGENT_CONDITIONS, FINDINGS_ANNOTATION):
        assert named in stays
    assert "pauses hold again" in stays
    client = await temporal(lab)
    for name in (sweep_workflow_id(lab.cluster), validation_workflow_id(lab.cluster)):
        with pytest.raises(RPCError) as refusal:
            await client.get_schedule_handle(name).describe()
        assert refusal.value.status is RPCStatusCode.NOT_FOUND

    # watch still runs, and may only look; an uninstallation ends it a moment later.
    log = audit(lab)
    nodes.inject(well, "gpu-lost")
    stays_true(lambda: not log.cordons(well), QUIET_S, "nothing is quarantined any more")

    again = leave("--yes")
    assert again.code == ExitCode.OK, again.out + again.err
    becomes = {one["node"]: one["becomes"] for one in again.json["nodes"]}
    assert becomes == {sick: f"it has been handed over ({marker.handed_over})"}


def test_a_node_that_people_have_keeps_the_reason_for_which_they_got_it(
    fleet: Fleet, nodes: TestNodes, leave: Callable[..., CliAnswer], tmp_path: Path
) -> None:
    node = nodes.add("a", POOL)
    fleet.cluster.arm(POOL)
    policy = tmp_path / "policy.yaml"
    write_policy(policy, [POOL])
    words = ("retire", node, "--reason", "its fan is due")
    told = fleetmend(fleet.lab, *words, environment={"FLEETMEND_POLICY": str(policy)})
    assert told.code == ExitCode.OK, told.err

    def handed_over() -> str:
        marker = fleet.cluster.marker(node)
        return marker.handed_over if marker else ""

    wait_until(handed_over, 60, "it is handed over")
    before = handed_over()
    assert "its fan is due" in before
    assert leave("--yes", "--reason", "the cluster goes").code == ExitCode.OK
    assert handed_over() == before


async def test_without_temporal_nodes_are_handed_over_and_what_stays_there_is_said(
    fleet: Fleet, nodes: TestNodes, leave: Callable[..., CliAnswer], unused_tcp_port: int
) -> None:
    node = nodes.add("a", POOL)
    fleet.cluster.arm(POOL)
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: fleet.cluster.marker(node), 30, "it is quarantined")
    nobody = f"127.0.0.1:{unused_tcp_port}"
    answer = leave("--yes", TEMPORAL_ADDRESS=nobody)
    assert answer.code == ExitCode.UNREACHABLE, answer.out + answer.err
    assert nobody in answer.json["temporal"]["problem"]
    marker = fleet.cluster.marker(node)
    assert marker is not None
    assert marker.handed_over
    assert await open_runs(fleet.lab)
    assert leave("--yes").code == ExitCode.OK
    assert await open_runs(fleet.lab) == []


def test_a_mark_that_cannot_be_read_is_left_and_named(
    fleet: Fleet, nodes: TestNodes, leave: Callable[..., CliAnswer]
) -> None:
    node = nodes.add("a", POOL)
    fleet.cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: "{"}}})
    answer = leave("--yes")
    assert answer.code == ExitCode.REFUSED, answer.out + answer.err
    (left,) = [one for one in answer.json["nodes"] if one["node"] == node]
    assert "cannot be read" in left["becomes"]
    assert fleet.cluster.node(node).annotations[EPISODE] == "{"


def test_a_node_that_cannot_be_read_is_not_called_gone(
    fleet: Fleet, own_lab: LabAddress, nodes: TestNodes, leave: Callable[..., CliAnswer]
) -> None:
    """Its mark would stay without an owner, and the uninstallation would go on."""
    node = nodes.add("a", POOL)
    fleet.cluster.arm(POOL)
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: fleet.cluster.marker(node), 30, "it is quarantined")
    with may_not_read_one_node(own_lab):
        answer = leave("--yes")
    assert answer.code == ExitCode.REFUSED, answer.out + answer.err
    (left,) = [one for one in answer.json["nodes"] if one["node"] == node]
    assert left["becomes"].startswith("left as it is: ")
    assert not left["is_owned"]
    marker = fleet.cluster.marker(node)
    assert marker is not None
    assert not marker.handed_over
    assert leave("--yes").code == ExitCode.OK


@contextmanager
def may_not_read_one_node(lab: LabAddress) -> Iterator[None]:
    """The hook's account lists and patches Nodes meanwhile, and gets none."""
    api = LabApi(lab)
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fleetmend-leave"
    role = api.request("GET", path)

    def allow(*verbs: str) -> None:
        rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": list(verbs)}]
        api.apply({**role, "metadata": {"name": "fleetmend-leave"}, "rules": rules})

    try:
        allow("list", "patch")
        yield
    finally:
        allow("get", "list", "patch")
        api.close()


def test_people_without_the_right_to_write_nodes_are_told(
    fleet: Fleet, nodes: TestNodes, leave: Callable[..., CliAnswer]
) -> None:
    node = nodes.add("a", POOL)
    fleet.cluster.arm(POOL)
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: fleet.cluster.marker(node), 30, "it is quarantined")
    before = fleet.cluster.arming()
    answer = fleetmend(fleet.lab, "leave", "--yes")
    assert answer.code == ExitCode.REFUSED
    assert "you may not patch Nodes" in answer.err
    assert fleet.cluster.arming() == before
    assert leave("--yes").code == ExitCode.OK


def test_a_cluster_without_marks_has_nothing_to_hand_over(fleet: Fleet) -> None:
    answer = fleetmend(fleet.lab, "leave")
    assert answer.code == ExitCode.OK, answer.err
    assert "no node carries a mark" in answer.out
    assert "to do it: fleetmend leave --yes" in answer.out
