"""What is built from Go modules, as values: one recipe for each set of programs.

Owns the two recipes of the lab (the control plane; Karpenter and helm beside it), each with its own
pinned module folder, so that one can be built, kept and renewed without the other. `build.py`
carries a recipe out; `programs.py` decides whether that is needed.
"""

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.lab.address import Component
from workers.lab.controlplane.errors import BuildFailed

_HERE: Final = Path(__file__).parent
KARPENTER_MODULE: Final = "sigs.k8s.io/karpenter"
HELM: Final = "helm"
HELM_MODULE: Final = "helm.sh/helm/v4"
CRD_FOLDER: Final = "crds"
RESERVATION_LABEL: Final = "karpenter.kwok.sh/reservation-id"
"""Names the reservation of an offering; built into the program, used by the instance types."""


@dataclass(frozen=True)
class Recipe:
    """One set of programs that is built, kept and renewed as a whole."""

    what: str
    """Names the set in messages: "the control plane's programs"."""
    module: Path
    """Folder with go.mod and go.sum."""
    packages: Mapping[str, str]
    """Go package by the name of its program."""
    version: str
    """Of what gives the set its name, without the v."""
    ldflags: str
    announcement: str
    """What is built and how long it takes; disk is added."""
    disk_need_gib: float
    disk_kept_gib: float
    prefix: str = ""
    """Of the folder in the cache, to tell sets apart."""
    built_as: Mapping[str, str] = field(default_factory=dict)
    """The name that `go build` gives a program, where it is another."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Globs below a module's folder, by module: copied to CRD_FOLDER beside the programs."""
    without_go: str = ""
    """What else may be done when there is no Go; the end of a sentence."""

    @property
    def build_flags(self) -> tuple[str, ...]:
        """Arguments of `go build`."""
        return ("-trimpath", "-buildvcs=false", "-ldflags", self.ldflags)

    @property
    def key(self) -> str:
        """What the built programs depend on, as a short name with the version in it."""
        digest = hashlib.sha256()
        for part in (
            (self.module / "go.mod").read_bytes(),
            (self.module / "go.sum").read_bytes(),
            repr((sorted(self.packages.items()), self.build_flags, platform.machine())).encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        return f"{self.prefix}{self.version}-{digest.hexdigest()[:10]}"


def control_plane_recipe() -> Recipe:
    """The control plane: etcd and the three Kubernetes programs.

    Raises:
        BuildFailed: go.mod doesn't pin Kubernetes.
    """
    module = _HERE / "go_programs"
    version = pinned_version(module, "k8s.io/kubernetes")
    major, minor, _ = version.split(".", 2)
    # Without its version the API server calls itself v0.0.0-master, and clients complain.
    stamp = "-X k8s.io/component-base/version.git"
    return Recipe(
        what="the control plane's programs",
        module=module,
        packages={
            Component.ETCD: "go.etcd.io/etcd/server/v3",
            Component.API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
            Component.CONTROLLER_MANAGER: "k8s.io/kubernetes/cmd/kube-controller-manager",
            Component.SCHEDULER: "k8s.io/kubernetes/cmd/kube-scheduler",
        },
        built_as={Component.ETCD: "server"},
        version=version,
        ldflags=f"-s -w {stamp}Version=v{version} {stamp}Major={major} {stamp}Minor={minor}",
        announcement=f"building Kubernetes {version} and etcd once: some 9 minutes on 2 cores",
        # Measured on linux/amd64 with Go 1.26: 0.7 modules, 2.8 compiled packages, 0.3 programs,
        # and room for the linker and a fetched toolchain.
        disk_need_gib=5.0,
        disk_kept_gib=0.3,
        without_go=(
            ", or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, "
            "kube-controller-manager and kube-scheduler"
        ),
    )


def karpenter_recipe() -> Recipe:
    """Karpenter with its kwok provider and CRDs, and helm, which shares most of its libraries.

    Raises:
        BuildFailed: go.mod doesn't pin them.
    """
    module = _HERE / "go_karpenter"
    version = pinned_version(module, KARPENTER_MODULE)
    helm = pinned_version(module, HELM_MODULE)
    # Without it this provider has no name for a reservation, and reserved offerings are a panic.
    reservation = f"{KARPENTER_MODULE}/pkg/cloudprovider.ReservationIDLabel"
    return Recipe(
        what="Karpenter and helm",
        prefix="karpenter-",
        module=module,
        packages={
            Component.KARPENTER: f"{KARPENTER_MODULE}/kwok",
            HELM: f"{HELM_MODULE}/cmd/helm",
        },
        built_as={Component.KARPENTER: "kwok"},
        files={KARPENTER_MODULE: ("pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml")},
        version=version,
        ldflags=(
            f"-s -w -X {reservation}={RESERVATION_LABEL} "
            f"-X {HELM_MODULE}/internal/version.version=v{helm}"
        ),
        announcement=f"building Karpenter {version} and helm {helm} once: some 5 minutes on 2 cores",
        # Chosen below the control plane's: fewer and smaller packages, the same toolchain. Kept
        # are 0.11 (linux/amd64).
        disk_need_gib=4.0,
        disk_kept_gib=0.1,
    )


def pinned_version(module: Path, name: str) -> str:
    """The version of a module in a go.mod, without the v.

    Raises:
        BuildFailed: it isn't pinned there.
    """
    pin = rf"^\s*(?:require\s+)?{re.escape(name)} v(\S+)"
    match = re.search(pin, (module / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise BuildFailed(f"{module / 'go.mod'} pins no {name}")
    return match.group(1)
