"""Karpenter as a process of the lab: its command line, and what must be there before it.

Owns the flags, the instance types file, and the installation of the CRDs and of the one
KWOKNodeClass that the lab's pools name. Its identity is a certificate of the group system:masters:
its rights are no subject of the lab. `controlplane.components` puts it into the table of processes.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from workers.lab.address import Component, LabAddress, write_atomically
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.child_spec import LOOPBACK, ChildSpec
from workers.lab.controlplane.errors import LabStartFailed
from workers.lab.controlplane.manifests import apply_manifest, await_served, read_manifests
from workers.lab.controlplane.probes import HttpProbe
from workers.lab.karpenter.instance_types import instance_types
from workers.lab.karpenter.node_pools import node_class

MEMORY_MIB: Final = 512
"""Some 60 MiB are used; the limit only tells Go when to collect harder."""


@dataclass(frozen=True)
class KarpenterPlaces:
    """Where one lab's Karpenter finds what it needs."""

    program: Path
    crds: Path
    kubeconfig: Path
    health_port: int


def karpenter_child(
    address: LabAddress, places: KarpenterPlaces, *, node_repair: bool
) -> ChildSpec:
    """The process; writes its instance types file.

    Args:
        address: of the lab.
        places: program, CRDs, identity, port.
        node_repair: whether it repairs nodes by itself.
    """
    paths = address.paths
    types = paths.directory / "configuration" / "instance-types.json"
    write_atomically(types, json.dumps(instance_types(), indent=1))
    gates = {"NodeRepair": node_repair, "StaticCapacity": True, "ReservedCapacity": True}
    named = ",".join(f"{gate}={str(is_on).lower()}" for gate, is_on in gates.items())
    return ChildSpec(
        component=Component.KARPENTER,
        command=(
            str(places.program),
            "-disable-leader-election",
            f"-instance-types-file-path={types}",
            f"-feature-gates={named}",
            f"-memory-limit={MEMORY_MIB << 20}",
            # Both listen on all addresses, that can't be told otherwise. Nobody asks for metrics:
            # any free port does.
            f"-health-probe-port={places.health_port}",
            "-metrics-port=0",
        ),
        probe=HttpProbe(f"http://{LOOPBACK}:{places.health_port}/readyz"),
        folder=paths.directory,
        log=paths.log(Component.KARPENTER),
        needs=(Component.API_SERVER,),
        address=f"{LOOPBACK}:{places.health_port}",
        ports=(places.health_port,),
        environment={"KUBECONFIG": str(places.kubeconfig)},
        prepare=partial(install_kinds, address, places.crds),
    )


def install_kinds(address: LabAddress, crds: Path) -> None:
    """Install Karpenter's CRDs and the lab's node class; may be run again at any time.

    Raises:
        ManifestRejected: a CRD was refused.
        LabStartFailed: the API server doesn't serve one within the limit.
    """
    api = LabApi(address)
    try:
        found = list(read_manifests(sorted(crds.glob("*.yaml"))))
        for path, manifest in found:
            apply_manifest(api, path, manifest)
        for _, manifest in found:
            await_served(api, manifest)
        apply_manifest(api, crds, node_class())
    except OSError as error:
        raise LabStartFailed(f"Karpenter's CRDs could not be installed: {error}", None, ()) from (
            error
        )
    finally:
        api.close()
