"""What is built from Go modules, as a value: the recipe of the lab's programs.

Owns the one recipe of the lab (the control plane, Karpenter with its CRDs, helm) and its pinned
module folder: one module, so that libraries which programs share are compiled once. `build.py`
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
# The code is the same without them, a cold build a quarter shorter (measured with Go 1.27 on
# net/http): no debug tables, which -w leaves out of the programs anyway, and a compiler that
# collects no garbage below 512 MiB.
_COMPILER_FLAGS: Final = "-gcflags=all=-dwarf=false -d=gcstart=512"
KARPENTER_MODULE: Final = "sigs.k8s.io/karpenter"
HELM: Final = "helm"
HELM_MODULE: Final = "helm.sh/helm/v4"
CRD_FOLDER: Final = "crds"
RESERVATION_LABEL: Final = "karpenter.kwok.sh/reservation-id"
"""Names the reservation of an offering; built into the program, used by the instance types."""


@dataclass(frozen=True)
class Recipe:
    """A set of programs that is built, kept and renewed as a whole."""

    module: Path
    """Folder with go.mod and go.sum."""
    packages: Mapping[str, str]
    """Go package by the name of its program."""
    version: str
    """Of Kubernetes, without the v; the folder in the cache is named by it."""
    ldflags: str
    announcement: str
    """What is built and how long it takes; disk is added."""
    disk_need_gib: float
    disk_kept_gib: float
    built_as: Mapping[str, str] = field(default_factory=dict)
    """The name that `go build` gives a program, where it is another."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Globs below a module's folder, by module: copied to CRD_FOLDER beside the programs."""

    @property
    def build_flags(self) -> tuple[str, ...]:
        """Arguments of `go build`."""
        return ("-trimpath", "-buildvcs=false", _COMPILER_FLAGS, "-ldflags", self.ldflags)

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
        return f"{self.version}-{digest.hexdigest()[:10]}"


def lab_recipe() -> Recipe:
    """The control plane (etcd and the three Kubernetes programs), Karpenter with its CRDs, helm.

    Raises:
        BuildFailed: go.mod doesn't pin them.
    """
    module = _HERE / "go_programs"
    kubernetes = pinned_version(module, "k8s.io/kubernetes")
    karpenter = pinned_version(module, KARPENTER_MODULE)
    helm = pinned_version(module, HELM_MODULE)
    return Recipe(
        module=module,
        packages={
            Component.ETCD: "go.etcd.io/etcd/server/v3",
            Component.API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
            Component.CONTROLLER_MANAGER: "k8s.io/kubernetes/cmd/kube-controller-manager",
            Component.SCHEDULER: "k8s.io/kubernetes/cmd/kube-scheduler",
            Component.KARPENTER: f"{KARPENTER_MODULE}/kwok",
            HELM: f"{HELM_MODULE}/cmd/helm",
        },
        built_as={Component.ETCD: "server", Component.KARPENTER: "kwok"},
        files={KARPENTER_MODULE: ("pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml")},
        version=kubernetes,
        ldflags=_ldflags(kubernetes, helm),
        announcement=(
            f"building Kubernetes {kubernetes}, etcd, Karpenter {karpenter} and helm {helm} once: "
            "some 10 minutes on 2 cores"
        ),
        # Measured on linux/amd64 with Go 1.27: 1.2 modules and toolchain, 2.8 compiled packages, as
        # much again while go works, 0.4 programs; and room for the linker.
        disk_need_gib=8.0,
        disk_kept_gib=0.4,
    )


def _ldflags(kubernetes: str, helm: str) -> str:
    """Of all programs: one that hasn't the package of an -X passes over it."""
    major, minor, _ = kubernetes.split(".", 2)
    stamps = {
        # Without its version the API server calls itself v0.0.0-master, and clients complain.
        "k8s.io/component-base/version.gitVersion": f"v{kubernetes}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        # Without it this provider has no name for a reservation, and reserved offerings are a
        # panic.
        f"{KARPENTER_MODULE}/pkg/cloudprovider.ReservationIDLabel": RESERVATION_LABEL,
        f"{HELM_MODULE}/internal/version.version": f"v{helm}",
    }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in stamps.items())])


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
