"""Finding what the processes of pods have written.

Owns the reading of the nodes' log folders, as `kubectl logs` would do it through a kubelet's own API,
which the lab has not. `process` writes the files; the command line and the demo read them here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workers.lab.kubelet.launcher import PODS_LOGS
from workers.lab.paths import LabPaths


@dataclass(frozen=True)
class PodLog:
    """The log of one container, over all of its restarts."""

    node: str
    namespace: str
    pod: str
    uid: str
    container: str
    path: Path

    def text(self, tail: int | None = None) -> str:
        """All of it, or its last lines."""
        text = self.path.read_text(errors="replace")
        return (
            text
            if tail is None
            else "".join(text.splitlines(keepends=True)[-tail:] if tail else [])
        )


def find_pod_logs(lab_directory: Path, namespace: str, name: str) -> list[PodLog]:
    """Logs of the pod of that name, else of those whose names begin so; the newest last."""
    every = [log for log in _logs(LabPaths(lab_directory).nodes) if log.namespace == namespace]
    found = [log for log in every if log.pod == name]
    found = found or [log for log in every if log.pod.startswith(name)]
    return sorted(found, key=lambda log: log.path.stat().st_mtime)


def _logs(nodes: Path) -> list[PodLog]:
    logs = []
    for path in nodes.glob(f"*/{PODS_LOGS}/*_*_*/*.log"):
        namespace, pod, uid = path.parent.name.split("_")
        node = path.relative_to(nodes).parts[0]
        logs.append(PodLog(node, namespace, pod, uid, path.stem, path))
    return logs
