"""Where the lab's programs come from.

Owns the order of sources: KUBEBUILDER_ASSETS, then PATH, then this user's cache, then a build from
the pinned Go module (`build.py`). For the control plane a source counts only whole: all programs,
new enough, the Kubernetes ones of one minor version; one passed over is announced with the reason.
Karpenter and helm are looked for apart, at the same places: Karpenter with its CRDs beside it, helm
from version 4. Temporal's program comes with the Python environment and is only looked up.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.lab.address import Component
from workers.lab.controlplane.build import BuildListener, ensure_built
from workers.lab.controlplane.errors import ProgramsUnavailable
from workers.lab.controlplane.recipe import CRD_FOLDER, HELM, lab_recipe

Announce = Callable[[str], None]

# What the lab asks for that older ones lack: anonymous access limited to paths by
# AuthenticationConfiguration (stable in Kubernetes 1.34), sockets and WAL fixes of etcd 3.5.21.
MINIMUM_KUBERNETES: Final = (1, 34)
MINIMUM_ETCD: Final = (3, 5, 21)
# What the chart asks for that helm 3 lacks: server-side apply.
MINIMUM_HELM: Final = (4, 0, 0)
VERSION_TIMEOUT_S: Final = 20.0

CONTROL_PLANE: Final = (
    Component.ETCD,
    Component.API_SERVER,
    Component.CONTROLLER_MANAGER,
    Component.SCHEDULER,
)

_VERSION: Final = re.compile(r"(?:etcd Version: |Kubernetes v|^v)(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Programs:
    """The programs of one lab, as absolute paths."""

    source: str
    paths: Mapping[Component, Path]

    def __getitem__(self, component: Component) -> Path:
        """Path of one component's program."""
        return self.paths[component]

    @property
    def karpenter_crds(self) -> Path:
        """Folder with the CRDs of Karpenter and its kwok provider."""
        return self.paths[Component.KARPENTER].parent / CRD_FOLDER

    def with_karpenter(self, listener: BuildListener) -> "Programs":
        """These and Karpenter; builds the lab's programs if it is nowhere.

        Raises:
            ProgramsUnavailable: there is no Go to build it with, or no room.
            BuildFailed: the build ended with an error.
        """
        path = _first(Component.KARPENTER, lambda found: (found.parent / CRD_FOLDER).is_dir())
        path = path or ensure_built(lab_recipe(), listener) / Component.KARPENTER
        return Programs(self.source, {**self.paths, Component.KARPENTER: path})


def find_programs(announce: Announce, listener: BuildListener) -> Programs:
    """The control plane's programs; builds the lab's (minutes, gigabytes) if they are nowhere.

    Args:
        announce: told one line for each source that was passed over.
        listener: told the progress of a build.

    Raises:
        ProgramsUnavailable: there is no Go to build them with, or no room.
        BuildFailed: the build ended with an error.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        found = _whole_set("KUBEBUILDER_ASSETS", lambda name: _in_folder(Path(assets), name))
        if isinstance(found, Programs):
            return found
        announce(f"KUBEBUILDER_ASSETS={assets} is not used: {found}")
    found = _whole_set("PATH", _on_path)
    if isinstance(found, Programs):
        return found
    if any(_on_path(component) for component in CONTROL_PLANE):
        announce(f"programs on PATH are not used: {found}")
    folder = ensure_built(lab_recipe(), listener)
    return Programs("cache", {c: folder / c.value for c in CONTROL_PLANE})


def find_helm(listener: BuildListener) -> Path:
    """The program of helm 4; builds the lab's programs if it is nowhere.

    Raises:
        ProgramsUnavailable: there is no Go to build it with, or no room.
        BuildFailed: the build ended with an error.
    """
    path = _first(HELM, lambda found: (_version(found, "version", "--short") or ()) >= MINIMUM_HELM)
    return path or ensure_built(lab_recipe(), listener) / HELM


def find_temporal() -> Path:
    """Temporal's program: beside this Python, else on PATH.

    Raises:
        ProgramsUnavailable: it is at neither place.
    """
    beside = Path(sys.executable).parent / "temporal"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("temporal")
    if on_path is None:
        raise ProgramsUnavailable(
            "the program temporal is missing; it comes with: pip install 'fleetmend[lab]'"
        )
    return Path(on_path).absolute()


def _whole_set(source: str, locate: Callable[[Component], Path | None]) -> Programs | str:
    """All programs from one source, or the reason why that source doesn't do."""
    paths: dict[Component, Path] = {}
    for component in CONTROL_PLANE:
        path = locate(component)
        if path is None:
            return f"{component.value} is missing"
        paths[component] = path
    minors = set()
    for component, path in paths.items():
        version = _version(path)
        if version is None:
            return f"{path} --version says nothing that is understood"
        minimum = MINIMUM_ETCD if component is Component.ETCD else MINIMUM_KUBERNETES
        if version < minimum:
            return f"{path} is {_dotted(version)}, at least {_dotted(minimum)} is needed"
        if component is not Component.ETCD:
            minors.add(version[:2])
    if len(minors) > 1:
        return f"its Kubernetes versions differ: {', '.join(map(_dotted, sorted(minors)))}"
    return Programs(source, paths)


def _first(name: str, counts: Callable[[Path], bool]) -> Path | None:
    """A program in KUBEBUILDER_ASSETS or on PATH, the first that counts."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    found = (_in_folder(Path(assets), name) if assets else None, _on_path(name))
    return next((path for path in found if path is not None and counts(path)), None)


def _in_folder(folder: Path, name: str) -> Path | None:
    path = folder.absolute() / name
    return path if os.access(path, os.X_OK) and path.is_file() else None


def _on_path(name: str) -> Path | None:
    path = shutil.which(name)
    return None if path is None else Path(path).absolute()


def _version(path: Path, *asked: str) -> tuple[int, ...] | None:
    try:
        answer = subprocess.run(
            [path, *(asked or ("--version",))],
            check=False,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout)
    return None if match is None else tuple(int(part) for part in match.groups())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
