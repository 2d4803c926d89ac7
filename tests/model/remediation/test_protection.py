"""Which pods protect their node, for which effects, and what is said about it."""

from dataclasses import replace

import pytest

from tests.model.remediation.test_marks import MARKER
from tests.model.views import POLICY, node, pod
from workflows.model.node import PodView
from workflows.model.policy import PolicyError, Scope
from workflows.model.policy_document import read_policy
from workflows.model.remediation.marks import EPISODE
from workflows.model.remediation.permit import ALLOWED, Effect, Refusal
from workflows.model.remediation.protection import decide_protection

NODE = node()
SERVICE = pod(
    namespace="fleetmend",
    name="fleetmend-watch-1",
    owner_kind="ReplicaSet",
    owner_name="fleetmend-watch",
    node_name=NODE.name,
)
OUT = node(annotations={EPISODE: MARKER.encode()})


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "StatefulSet"])
@pytest.mark.parametrize("effect", [Effect.MARK, Effect.DISRUPT])
def test_a_service_of_a_protected_namespace_protects_its_node(effect: Effect, kind: str) -> None:
    permit = decide_protection(effect, NODE, [replace(SERVICE, owner_kind=kind)], POLICY)
    assert permit.refusal is Refusal.PROTECTED
    assert "fleetmend/fleetmend-watch-1" in permit.detail
    assert "delete the pod" in permit.detail


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(SERVICE, owner_kind="DaemonSet"), id="DaemonSet"),
        pytest.param(replace(SERVICE, owner_kind="Job"), id="Job"),
        pytest.param(replace(SERVICE, owner_kind=""), id="bare node task"),
        pytest.param(replace(SERVICE, namespace="training"), id="other namespace"),
        pytest.param(replace(SERVICE, node_name="node-2"), id="other node"),
        pytest.param(replace(SERVICE, node_name=""), id="not bound"),
        pytest.param(replace(SERVICE, phase="Succeeded"), id="succeeded"),
        pytest.param(replace(SERVICE, phase="Failed"), id="failed"),
    ],
)
def test_no_other_pod_does(other: PodView) -> None:
    assert decide_protection(Effect.DISRUPT, NODE, [other], POLICY) is ALLOWED


def test_a_pod_that_is_going_protects_until_it_is_gone() -> None:
    going = replace(SERVICE, deleting=True)
    assert decide_protection(Effect.MARK, NODE, [going], POLICY).refusal is Refusal.PROTECTED


@pytest.mark.parametrize("effect", [Effect.MARK, Effect.DISRUPT])
def test_what_cannot_be_told_is_refused_with_the_remedy(effect: Effect) -> None:
    permit = decide_protection(effect, NODE, None, POLICY)
    assert permit.refusal is Refusal.PROTECTION_UNKNOWN
    assert "deploy/chart" in permit.detail


@pytest.mark.parametrize("pods", [None, [SERVICE]], ids=["unknown", "protected"])
@pytest.mark.parametrize("effect", [Effect.READ, Effect.RESTORE])
def test_reading_and_giving_back_are_never_refused(
    effect: Effect, pods: list[PodView] | None
) -> None:
    """P8."""
    assert decide_protection(effect, OUT, pods, POLICY) is ALLOWED


def test_a_node_that_is_out_already_may_be_marked_but_not_disrupted() -> None:
    """P8: its inventory and its slot are on the way back."""
    assert decide_protection(Effect.MARK, OUT, [SERVICE], POLICY) is ALLOWED
    assert decide_protection(Effect.DISRUPT, OUT, [SERVICE], POLICY).refusal is Refusal.PROTECTED


@pytest.mark.parametrize(
    "text", ["garbage", replace(MARKER, handed_over="operator:fan").encode()], ids=["bad", "handed"]
)
def test_a_mark_that_is_nobodys_opens_no_door(text: str) -> None:
    found = node(annotations={EPISODE: text})
    assert decide_protection(Effect.MARK, found, [SERVICE], POLICY).refusal is Refusal.PROTECTED


def test_nothing_is_protected_where_people_say_so() -> None:
    policy = POLICY.model_copy(update={"scope": Scope(protected_namespaces=())})
    assert decide_protection(Effect.DISRUPT, NODE, None, policy) is ALLOWED


@pytest.mark.parametrize(
    "names", [["Fleetmend"], ["a/b"], [""], ["x"] * 9], ids=["case", "slash", "empty", "many"]
)
def test_a_name_that_no_namespace_has_is_told(names: list[str]) -> None:
    with pytest.raises(PolicyError, match=r"scope\.protected_namespaces"):
        read_policy({"scope": {"protected_namespaces": names}})
