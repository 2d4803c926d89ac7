"""Reboot proof: whether the boot that was asked for happened; done, not done, or unknown.

Owns the comparison of what was recorded before with what the Node says now. Ready alone proves
nothing (a fast reboot never turns it False), an empty boot id proves nothing, and a Node of
another UID or machine is not the one that was rebooted. Pure.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from workflows.model.node import NodeView


class Proof(StrEnum):
    """What is known of a reboot."""

    DONE = "done"
    NOT_DONE = "not-done"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class BootRecord:
    """What the Node said before the reboot was asked for."""

    node_uid: str
    provider_id: str
    machine_uuid: str
    boot_id: str
    at: datetime


@dataclass(frozen=True)
class RebootProof:
    """The answer, with the boot id that was seen and one line for people."""

    proof: Proof
    boot_id: str
    detail: str


def prove_reboot(before: BootRecord, node: NodeView, *, seen_down: bool = False) -> RebootProof:
    """Compares; `seen_down` = the node was seen not ready since the request.

    DONE needs the same UID, providerID and machine, a changed non-empty boot id, and Ready True.
    A Node's boot id lags the boot, so "unchanged" is NOT_DONE only while Ready held throughout.
    """
    boot = node.boot_id
    if node.uid != before.node_uid:
        return RebootProof(Proof.UNKNOWN, boot, "the Node was recreated: another UID")
    if node.provider_id != before.provider_id or node.machine_uuid != before.machine_uuid:
        return RebootProof(Proof.UNKNOWN, boot, "another machine answers under this Node")
    if not before.boot_id or not boot:
        return RebootProof(Proof.UNKNOWN, boot, "a boot id is missing: nothing can be proven")
    if boot == before.boot_id:
        proof = Proof.UNKNOWN if seen_down or not node.ready else Proof.NOT_DONE
        return RebootProof(proof, boot, f"the boot id is still {boot}")
    if not node.ready:
        return RebootProof(Proof.UNKNOWN, boot, "booted, not Ready yet")
    return RebootProof(Proof.DONE, boot, f"boot id {before.boot_id} became {boot}, Ready")
