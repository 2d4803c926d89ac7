"""Who is who: nodes, machines, episodes and the workflow ids made of them.

Owns the derivation of stable identifiers. A Node is named by its UID together with its name, a
physical machine by its systemUUID (a Node object may be recreated for the same machine, and a
new machine may reuse a Node's name). Talks to nothing.
"""

import hashlib
import re
from dataclasses import dataclass

SHARED_SYSTEM_UUIDS = frozenset(
    {
        "",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "03000200-0400-0500-0006-000700080009",
    }
)
"""Values that many boards share because their vendor never filled the field in (SMBIOS type 1)."""

_MACHINE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""What a systemUUID may look like to be a name: hexadecimal groups, and clouds' own ids."""
GUARD_WORKFLOW_PREFIX = "guard/"
SWEEP_WORKFLOW_PREFIX = "sweep/"
VALIDATION_WORKFLOW_PREFIX = "validate/"


@dataclass(frozen=True)
class NodeRef:
    """One Node object: its name is for people, its UID is the identity."""

    name: str
    uid: str


def workflow_id(cluster: str, node: NodeRef) -> str:
    """The id of the remediation workflow of one Node object (a recreated Node gets another)."""
    return f"node/{cluster}/{node.name}/{node.uid}"


def task_queue(cluster: str) -> str:
    """Where the work of one cluster waits: a worker that acts on another one never sees it."""
    return f"fleetmend/{cluster}"


def guard_workflow_id(cluster: str) -> str:
    """The id of the one FleetGuard of a cluster."""
    return f"{GUARD_WORKFLOW_PREFIX}{cluster}"


def sweep_workflow_id(cluster: str) -> str:
    """The id of the cluster's Sweep workflow and of its Schedule."""
    return f"{SWEEP_WORKFLOW_PREFIX}{cluster}"


def validation_workflow_id(cluster: str, request: str = "") -> str:
    """The id of the ValidateFleet workflow of a tick and of its Schedule, or of a person's request.

    A tick's runs get the time appended by Temporal, and a person's its request id.
    """
    tail = f"/by-hand/{request}" if request else ""
    return f"{VALIDATION_WORKFLOW_PREFIX}{cluster}{tail}"


def machine_id(system_uuid: str, provider_id: str, node_uid: str) -> str:
    """The name of the GPUMachine of a physical machine.

    The lower-case systemUUID; where that is empty or shared, a hash of the providerID; where
    both are missing, a hash of the Node's UID (such a machine has no memory beyond its Node).
    """
    candidate = system_uuid.strip().lower()
    if candidate not in SHARED_SYSTEM_UUIDS and _MACHINE_NAME.fullmatch(candidate):
        return candidate
    source = provider_id.strip() or f"node-uid:{node_uid}"
    return "machine-" + hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:32]
