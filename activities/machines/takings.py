"""Takings: which newcomer belongs to which episode, as labels of the newcomer's machine record.

Owns the one write by which an episode takes a newcomer for its successor. It is guarded by the
record's resourceVersion, so that of two episodes one takes it; it names the NodeClaim, so that the
same iron under another claim is free again; and it outlives the run. Does not choose
(`activities/karpenter/succession.py`). Talks to `store.py`.
"""

import hashlib
import re
from typing import Final

from activities import errors
from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, PatchKind, Selector
from activities.kube.errors import Conflict
from activities.machines.record import new_record
from activities.machines.store import ROUNDS, MachineStore
from workflows.model.identity import machine_id
from workflows.model.node import NodeView

SUCCEEDS: Final = "fleetmend.io/succeeds"
"""Label: the episode whose machine this one took the place of."""
CLAIM: Final = "fleetmend.io/claim"
"""Label: UID of the NodeClaim that it was then."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Takings:
    """Reads and writes who has taken whom. Thread-safe."""

    def __init__(self, kube: KubeClient, store: MachineStore) -> None:
        self._kube = kube
        self._store = store

    def successors_of(self, episode: str) -> frozenset[str]:
        """UIDs of the NodeClaims that this episode has taken."""
        mine = Selector(label=f"{SUCCEEDS}={_label_value(episode)}")
        found = self._kube.list(paths.gpu_machines(), selector=mine).items
        return frozenset(_taking(body)[0] for body in found)

    def is_anothers(self, node: NodeView, claim: str, episode: str) -> bool:
        """True if another episode has taken this NodeClaim's machine."""
        body = self._store.get(_name_of(node))
        return body is not None and _is_anothers(body, claim, episode)

    def take(self, node: NodeView, claim: str, episode: str) -> bool:
        """True if it is this episode's from now on, or was before; False = it is another's.

        Raises:
            ApplicationError: the record changed in every round; retried by the step.
        """
        name = _name_of(node)
        labels = {SUCCEEDS: _label_value(episode), CLAIM: claim}
        for _ in range(ROUNDS):
            body = self._store.get(name)
            try:
                if body is None:
                    ref = {"name": node.name, "uid": node.uid}
                    body = self._kube.create(paths.gpu_machines(), new_record(name, "", ref))
                if _is_anothers(body, claim, episode):
                    return False
                if _taking(body) != (claim, labels[SUCCEEDS]):
                    self._kube.patch(
                        paths.gpu_machine(name),
                        {"metadata": {"labels": labels}},
                        kind=PatchKind.MERGE,
                        resource_version=str(body["metadata"]["resourceVersion"]),
                    )
            except Conflict:
                continue
            return True
        raise errors.try_again(f"GPUMachine {name} changed {ROUNDS} times in a row")


def _name_of(node: NodeView) -> str:
    return machine_id(node.system_uuid, node.provider_id, node.uid)


def _taking(body: JsonObject) -> tuple[str, str]:
    """NodeClaim UID and episode; each "" = none."""
    labels = body["metadata"].get("labels") or {}
    return str(labels.get(CLAIM, "")), str(labels.get(SUCCEEDS, ""))


def _is_anothers(body: JsonObject, claim: str, episode: str) -> bool:
    taken, by = _taking(body)
    return taken == claim and by not in ("", _label_value(episode))


def _label_value(episode: str) -> str:
    """The id, or, where it is no value of a label, a hash of it."""
    if _LABEL_VALUE.fullmatch(episode):
        return episode
    return hashlib.sha256(episode.encode()).hexdigest()[:32]
