"""Getting and changing GPUMachine objects without losing anybody's entries.

Owns the round of read, change, write under resourceVersion. What a change is stands in `record.py`.
Used by `records.py` (writes) and by the activities that read a machine's memory.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from activities import errors
from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, PatchKind
from activities.kube.errors import Conflict, NotFound
from activities.machines.record import memory_of, new_record, spec_change
from workflows.contracts.kube import MachineMemory
from workflows.model.identity import machine_id
from workflows.model.node import NodeView

ROUNDS: Final = 8
"""Times a change is decided anew after a conflict; the rest is the step's retry."""

Change = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From the record as it stands to the merge patch of its status; empty = nothing to write."""


class MachineStore:
    """The machine records of the cluster. Thread-safe."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    def of(self, node: NodeView, episode: str) -> MachineMemory:
        """What the record of the node's machine says to `episode`; empty if there is none."""
        name = machine_id(node.system_uuid, node.provider_id, node.uid)
        return memory_of(name, self.get(name), episode)

    def get(self, name: str) -> JsonObject | None:
        """One record; None = there is none."""
        try:
            return self._kube.get(paths.gpu_machine(name))
        except NotFound as error:
            if error.is_unserved:
                raise
            return None

    def all(self) -> list[JsonObject]:
        """Every record."""
        return self._kube.list(paths.gpu_machines()).items

    def change(self, name: str, pool: str, node: Mapping[str, Any], change: Change) -> None:
        """Makes the record say where the machine is, and merges `change` into its status.

        Creates the record if there is none.

        Raises:
            ApplicationError: it changed under every round; retried by the step.
            ApiError: it could not be read or written.
        """
        for _ in range(ROUNDS):
            body = self.get(name)
            try:
                if body is None:
                    body = self._kube.create(paths.gpu_machines(), new_record(name, pool, node))
                self._write(name, body, spec_change(body, pool, node), change)
            except Conflict:
                continue
            return
        raise errors.try_again(f"GPUMachine {name} changed {ROUNDS} times in a row")

    def _write(self, name: str, body: JsonObject, spec: dict[str, Any], change: Change) -> None:
        """Both patches are guarded by the version they were decided on."""
        if spec:
            body = self._kube.patch(
                paths.gpu_machine(name), spec, kind=PatchKind.MERGE, resource_version=_version(body)
            )
        status = change(body)
        if status:
            self._kube.patch(
                paths.gpu_machine_status(name),
                status,
                kind=PatchKind.MERGE,
                resource_version=_version(body),
            )

    def forget_node(self, body: JsonObject) -> bool:
        """Takes the Node off the record of a machine that has none any more.

        What was learned of the machine stays. False = the record has changed since it was read.
        """
        name = str(body["metadata"]["name"])
        try:
            kept = self._kube.patch(
                paths.gpu_machine(name),
                {"spec": {"node": None}},
                kind=PatchKind.MERGE,
                resource_version=_version(body),
            )
        except (Conflict, NotFound):
            return False
        return self.forget_run(kept)

    def forget_run(self, body: JsonObject) -> bool:
        """Takes the run off the record of a machine whose run was lost.

        False = the record has changed since it was read: a run that lives writes its own again.
        """
        try:
            self._kube.patch(
                paths.gpu_machine_status(str(body["metadata"]["name"])),
                {"status": {"workflowID": ""}},
                kind=PatchKind.MERGE,
                resource_version=_version(body),
            )
        except (Conflict, NotFound):
            return False
        return True


def _version(body: JsonObject) -> str:
    return str(body["metadata"]["resourceVersion"])
