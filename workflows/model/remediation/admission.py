"""Admission: which node is new and not proven yet, what it waits for, and how it is let in.

Owns the startup taint (NodePool `startupTaints`, or a kubelet's `--register-with-taints`), the one
patch that takes it off, and what is judged before. fleetmend never puts the taint on. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.model.node import NodeView
from workflows.model.policy import Policy
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.gate import Judgement, Verdict
from workflows.model.remediation.marks import is_marked
from workflows.model.remediation.permit import may_mark
from workflows.model.remediation.replacement import GPU_RESOURCE

TAINT_KEY = "fleetmend.io/unvalidated"
TAINT_EFFECT = "NoSchedule"
STARTUP_TAINT = f"{TAINT_KEY}:{TAINT_EFFECT}"
UNREGISTERED = "karpenter.sh/unregistered:NoExecute"
"""On a node that Karpenter made and has not registered yet (Karpenter 1.15.0). Its registration
puts the startup taints on, also one that was taken off before."""


def is_newcomer(node: NodeView) -> bool:
    """True if the startup taint keeps work off the node: nobody has proven it yet."""
    return STARTUP_TAINT in node.taints


def is_registered(node: NodeView) -> bool:
    """False while Karpenter would still put the startup taint back on."""
    return UNREGISTERED not in node.taints


def waits_for(node: NodeView, policy: Policy, arming: Arming) -> str:
    """What the admission of a newcomer waits for that only people give, for them; "" = nothing."""
    pool = policy.pool_of(node.labels)
    if pool is None:
        return (
            f"it is in no pool of the policy, so nothing takes its taint {STARTUP_TAINT} off; "
            "add it to a pool, or take the taint off by hand"
        )
    permit = may_mark(node, arming, policy)
    if permit.refusal is not None:
        why = permit.detail
    elif pool.expected_gpus is None:
        why = (
            f"the policy does not say how many GPUs a node of pool {pool.name} has (expected_gpus)"
        )
    else:
        return ""
    return f"{why}; until then its taint {STARTUP_TAINT} stays and keeps work off"


def is_due(node: NodeView, waits: str) -> bool:
    """True if an admission may begin: Ready, registered, nobody has it, and people allow it.

    `waits` is what `waits_for` says of the node.
    """
    is_free = node.ready and not node.deleting and not is_marked(node)
    return is_newcomer(node) and is_registered(node) and is_free and not waits


def judge_offer(node: NodeView, expected: int) -> Judgement:
    """Whether the cluster offers as many GPUs as the node itself has just counted.

    Fewer is never a fault of the machine, which has counted them: its device plugin is not there
    yet, does not tolerate the taint, or holds some back.
    """
    offered = node.gpus.get(GPU_RESOURCE, 0)
    if offered >= expected:
        return Judgement(Verdict.PASSED)
    hint = "" if offered else f": does its device plugin tolerate {STARTUP_TAINT}?"
    why = f"it counts {expected} GPUs and offers {offered} as {GPU_RESOURCE}{hint}"
    return Judgement(Verdict.UNKNOWN, (why,))


def admission_patch(node: NodeView, taints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The merge patch that takes the startup taint off, and leaves the others as they were read.

    A list is replaced as a whole, so it is guarded by the resourceVersion of that very reading.
    """
    left = [taint for taint in taints if not _is_ours(taint)]
    return {
        "metadata": {"uid": node.uid, "resourceVersion": node.resource_version},
        "spec": {"taints": left or None},
    }


def _is_ours(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == TAINT_KEY and taint.get("effect") == TAINT_EFFECT
