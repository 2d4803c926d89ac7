"""Bare Nodes with NodeClaims behind them, and nobody who acts on these."""

from collections.abc import Callable, Iterator

import pytest

from tests.activities.conftest import BareNodes
from tests.activities.karpenter.kinds import Claims, install_kinds
from tests.harness.cluster import Cluster
from workflows.contracts.kube import Owner
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL

AddNode = Callable[..., Owner]


@pytest.fixture
def claims(cluster: Cluster, unique: Callable[[str], str]) -> Iterator[Claims]:
    install_kinds(cluster)
    own = Claims(cluster, unique("np"))
    yield own
    own.remove_all()


@pytest.fixture
def karpenter_node(bare: BareNodes, claims: Claims) -> AddNode:
    """Adds a Node as Karpenter makes them."""

    def add(name: str = "a", **changes: object) -> Owner:
        spec = {"providerID": f"lab:///{bare.unique(name)}"}
        labels = {KARPENTER_NODEPOOL_LABEL: claims.pool}
        return bare.add(name, **{"labels": labels, "spec": spec, **changes})

    return add
