"""`arm`, `disarm`, and the pauses of a pool or the fleet: the ConfigMap is the witness."""

import json
import os
import pty
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from activities.kube import paths
from activities.policy_file import NAMESPACE
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import fleetmend
from tests.harness.services import service_on
from tests.harness.starts import CLI
from tests.workers.cli.conftest import POOL
from workers.cli.arming import arm, change_pause, disarm
from workers.cli.cluster import LAST_CHANGE
from workers.cli.outcome import CommandError, ExitCode
from workers.lab.address import LabAccount, LabAddress
from workflows.model.remediation.arming import ARMING_CONFIG_MAP, FLEET
from workflows.model.remediation.marks import EPISODE, Marker, Quarantine


@pytest.fixture(autouse=True)
def _as_the_operator(
    lab: LabAddress, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Commands run in this process, with the operator's rights; what they armed goes again."""
    for name, value in lab.environment(LabAccount.OPERATOR).items():
        monkeypatch.setenv(name, value)
    before = cluster.arming()
    yield
    cluster.write_arming(before)


def arm_now(*, dry_run: bool = False) -> None:
    arm(POOL, reason="", dry_run=dry_run, as_json=True)


def pause_now(scope: str, *, paused: bool = True) -> None:
    change_pause(scope, paused=paused, reason="r", as_json=True)


def test_arming_records_who_and_why(lab: LabAddress, cluster: Cluster, nodes: TestNodes) -> None:
    nodes.add("a", POOL)
    words = ("arm", POOL, "--reason", "drill", "--json")
    answer = fleetmend(lab, *words, environment={"FLEETMEND_CALLER": "ada@desk"})
    assert answer.code == ExitCode.OK, answer.err
    (entry,) = [e for e in cluster.arming().armed if e.scope == POOL]
    assert (entry.by, entry.reason) == ("ada@desk", "drill")


def test_arming_shows_what_matches_and_what_would_be_done(
    cluster: Cluster, nodes: TestNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    sick, *_ = nodes.add_many(["a", "b", "c", "d", "e"], POOL)
    nodes.inject(sick, "gpu-lost")
    arm_now()
    out = capsys.readouterr().out
    (match,) = json.loads(out[out.index("{\n") :])["matches"]
    assert (match["node"], match["fault"]) == (sick, "gpu-lost")
    assert match["would"] == "cordon at once, drain (now), reboot, gate, give back or hold"
    assert cluster.arming().is_armed(POOL)


def test_a_policy_that_matches_too_much_does_not_arm(cluster: Cluster, nodes: TestNodes) -> None:
    names = nodes.add_many(["a", "b", "c", "d", "e"], POOL)
    for name in names[:2]:
        nodes.inject(name, "gpu-lost")
    with pytest.raises(CommandError, match="2 of its 5 nodes match") as refusal:
        arm_now()
    assert "arming_share 20%" in str(refusal.value)
    assert refusal.value.code is ExitCode.REFUSED
    assert not cluster.arming().is_armed(POOL)


def test_nodes_that_run_pods_of_fleetmend_itself_are_shown_and_left_out(
    cluster: Cluster,
    nodes: TestNodes,
    unique: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, other = nodes.add_many(["a", "b"], POOL)
    nodes.inject(host, "gpu-lost")
    with service_on(cluster, host, unique("svc")):
        arm_now(dry_run=True)
    out = capsys.readouterr().out
    answer = json.loads(out[out.index("{\n") :])
    assert list(answer["protected"]) == [host]
    assert "delete the pod" in answer["protected"][host]
    assert (answer["nodes"], answer["matches"], answer["protection_unknown"]) == (1, [], "")
    assert other not in answer["protected"]


def at_a_terminal(lab: LabAddress, *words: str, answer: str = "") -> tuple[int, str]:
    """One command with a terminal for its streams; `answer` is typed once it asks."""
    ours, theirs = pty.openpty()
    env = {**os.environ, **lab.environment(LabAccount.OPERATOR), "COLUMNS": "200"}
    command = subprocess.Popen(
        [*CLI, *words], env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    said, asked = "", False
    try:
        with suppress(OSError):  # Linux ends a terminal that nobody holds any more with EIO
            while select.select([ours], [], [], 60.0)[0]:
                said += os.read(ours, 4096).decode()
                if answer and not asked and "[y/N]" in said:
                    os.write(ours, f"{answer}\n".encode())
                    asked = True
        return command.wait(30), said
    finally:
        command.kill()
        os.close(ours)


def test_a_person_at_a_terminal_is_asked_when_something_would_be_done_at_once(
    lab: LabAddress, cluster: Cluster, nodes: TestNodes
) -> None:
    """Seen: the chart's notes say that it asks, and it never did."""
    sick, *_ = nodes.add_many(["a", "b", "c", "d", "e"], POOL)
    nodes.inject(sick, "gpu-lost")
    code, said = at_a_terminal(lab, "arm", POOL, answer="n")
    assert code == ExitCode.REFUSED, said
    assert sick in said
    assert f"Arm pool {POOL}, and begin with this node now? [y/N]" in said
    assert "nothing was changed" in said
    assert not cluster.arming().is_armed(POOL)
    code, said = at_a_terminal(lab, "arm", POOL, answer="y")
    assert (code, cluster.arming().is_armed(POOL)) == (ExitCode.OK, True), said
    cluster.disarm(POOL)
    code, said = at_a_terminal(lab, "arm", POOL, "--yes")
    assert (code, cluster.arming().is_armed(POOL)) == (ExitCode.OK, True), said
    assert "[y/N]" not in said


def test_nobody_is_asked_when_nothing_would_be_done(
    lab: LabAddress, cluster: Cluster, nodes: TestNodes
) -> None:
    nodes.add("a", POOL)
    code, said = at_a_terminal(lab, "arm", POOL)
    assert (code, cluster.arming().is_armed(POOL)) == (ExitCode.OK, True), said


def test_a_node_that_was_handed_over_is_shown_as_left_alone(
    cluster: Cluster, nodes: TestNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    given, *_ = nodes.add_many(["a", "b"], POOL)
    nodes.inject(given, "gpu-lost")
    marker = Marker(
        episode="ep-1",
        node_uid=cluster.node(given).uid,
        since=datetime.now(UTC),
        rule="r",
        fault="gpu-lost",
        quarantine=Quarantine.OPERATOR,
        handed_over="operator:the fan is due",
    )
    body = {"metadata": {"annotations": {EPISODE: marker.encode()}}}
    cluster.patch_node(given, {**body, "spec": {"unschedulable": True}})
    arm_now(dry_run=True)
    out = capsys.readouterr().out
    answer = json.loads(out[out.index("{\n") :])
    assert (answer["nodes"], answer["matches"]) == (1, [])
    assert answer["handed_over"][given].startswith("handed over to operator, ")
    arm(POOL, reason="", dry_run=True, as_json=False)
    said = capsys.readouterr().out
    assert f"left alone: Node {given} is handed over to operator" in said
    assert "the fan is due" in said


def test_a_dry_run_arms_nothing(cluster: Cluster, nodes: TestNodes) -> None:
    nodes.add("a", POOL)
    arm_now(dry_run=True)
    assert not cluster.arming().is_armed(POOL)


def test_an_unknown_pool_is_refused_with_the_known_ones(lab: LabAddress) -> None:
    with pytest.raises(CommandError, match=f"its pools: {POOL}") as refusal:
        arm("nowhere", reason="", dry_run=False, as_json=True)
    assert refusal.value.code is ExitCode.REFUSED


def test_disarming_keeps_the_other_pools(cluster: Cluster) -> None:
    cluster.arm(POOL, "another")
    disarm(POOL, reason="drill is over", as_json=True)
    assert not cluster.arming().is_armed(POOL)
    assert cluster.arming().is_armed("another")
    found = cluster.kube.get(paths.config_map(NAMESPACE, ARMING_CONFIG_MAP))
    note = found["metadata"]["annotations"][LAST_CHANGE]
    assert f"disarm {POOL} by " in note
    assert note.endswith(": drill is over")
    with pytest.raises(CommandError, match="is not armed"):
        disarm(POOL, reason="drill is over", as_json=True)


def test_a_pause_keeps_what_is_armed_and_other_pauses(cluster: Cluster) -> None:
    cluster.arm("another")
    cluster.pause("another")
    pause_now(POOL)
    pause_now(FLEET)
    now = cluster.arming()
    assert {e.scope for e in now.paused} == {"another", POOL, FLEET}
    assert now.is_armed("another")
    pause_now(POOL, paused=False)
    assert {e.scope for e in cluster.arming().paused} == {"another", FLEET}
    with pytest.raises(CommandError, match="is not paused"):
        pause_now(POOL, paused=False)


def test_an_unreadable_arming_is_told_and_not_armed_over(
    cluster: Cluster, nodes: TestNodes
) -> None:
    nodes.add("a", POOL)
    cluster.write_raw_arming({"armed": "no json", "paused": "[]"})
    with pytest.raises(CommandError, match="cannot be read"):
        arm_now()
    pause_now(FLEET)
    assert cluster.arming().problem == ""
