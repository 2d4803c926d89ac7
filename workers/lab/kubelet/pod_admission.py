"""Whether a full node's kubelet admits a pod: its GPUs must be there and free.

Owns that decision and the words of the refusal, which are a kubelet's. `pod_worker` asks before a
pod starts and writes the refusal down.
"""

from __future__ import annotations

from collections.abc import Callable

from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import ContainerRuntime, Sandbox
from workers.lab.kubelet.pod_status import PodPhase, Verdict
from workers.lab.kubelet.spec import GPU_RESOURCE


def gpus_asked(pod: JsonObject) -> int:
    """How many GPUs the pod's containers are limited to, together."""
    total = 0
    for container in pod["spec"]["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        total += int(limits.get(GPU_RESOURCE, "0"))
    return total


def refusal(
    sandbox: Sandbox, runtime: ContainerRuntime, gpus_allocatable: Callable[[], int]
) -> Verdict | None:
    """Why the pod isn't admitted: too few GPUs, or, after a boot, none registered yet."""
    if sandbox.gpus == 0:
        return None
    allocatable = gpus_allocatable()
    free = allocatable - runtime.gpus_in_use()
    if sandbox.gpus <= free:
        return None
    if allocatable == 0:
        text = (
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy "
            f"devices {GPU_RESOURCE}, which is unexpected"
        )
        return Verdict(PodPhase.FAILED, "UnexpectedAdmissionError", text)
    text = f"Node didn't have enough resource: {GPU_RESOURCE}, requested: {sandbox.gpus}"
    return Verdict(
        PodPhase.FAILED,
        f"OutOf{GPU_RESOURCE}",
        f"{text}, used: {allocatable - free}, capacity: {allocatable}",
    )
