"""How one lab's control plane is to be run.

Owns the settings of a lab, field by field with unit and default, and the plan with its ports.
`components.py` turns them into command lines; nothing else reads them.
"""

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

import workers
from workers.lab.address import Component

REPOSITORY_CHART = Path(workers.__file__).parent.parent / "deploy" / "chart"


class AuditMode(StrEnum):
    """How the API server writes its audit log."""

    BATCH = "batch"  # within milliseconds after the answer
    BLOCKING = "blocking"  # before the answer: a test may read its own write at once


class ReleaseSettings(BaseModel):
    """fleetmend as pods of a lab."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(1, ge=1, le=5)
    """Of watch and of worker."""

    policy: Path = REPOSITORY_CHART.parent / "policies" / "demo.yaml"
    """File with the policy; the built-in one knows no pool of a lab."""

    tag: str = Field("lab", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
    """Of the image: `lab` = this checkout, another one = the lab's own `images/TAG`."""


class LabSettings(BaseModel):
    """Settings of one lab. The defaults serve the demo and most tests.

    They are remembered in the lab directory; a restart without settings uses them again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: str = Field("lab", pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")
    """Name of the cluster, part of workflow ids."""

    api_port: int | None = Field(None, ge=1024, le=65535)
    """Port of the API server on 127.0.0.1; None = a free one, kept over restarts."""

    temporal_port: int | None = Field(None, ge=1024, le=65535)
    """Port of Temporal's frontend; None = a free one, kept over restarts."""

    temporal_ui_port: int | None = Field(None, ge=1024, le=65535)
    """Port of Temporal's web UI; None = a free one, kept over restarts."""

    temporal: bool = True
    """Whether this lab has a Temporal dev server."""

    fleet: bool = True
    """Whether this lab runs the simulated nodes' process (without nodes until some are added)."""

    karpenter: bool = False
    """Whether this lab has Karpenter with its kwok provider; the nodes that it makes are played by
    the simulated nodes' process."""

    node_repair: bool = False
    """Whether Karpenter repairs nodes by itself (its gate NodeRepair)."""

    node_monitor_grace_s: float = Field(8.0, ge=2.0, le=600.0)
    """Silence of a kubelet after which its node is Unknown. Leases are to be renewed at least
    three times within it, otherwise the zone counts as disrupted and no NoExecute taint comes."""

    default_toleration_s: int = Field(5, ge=0, le=3600)
    """Seconds for which pods that don't say tolerate a node that is not ready or unreachable."""

    audit_mode: AuditMode = AuditMode.BATCH
    """How the audit log is written."""

    ready_timeout_s: float = Field(120.0, gt=0.0, le=600.0)
    """Deadline of a start. A start takes 5 s on two idle cores, 20 s on cores shared by ten."""

    deploy: Path | None = REPOSITORY_CHART
    """Folder of the Helm chart to install at the start, with the values of `chart.lab_values`; None =
    install nothing but the namespace."""

    release: ReleaseSettings | None = None
    """What of fleetmend runs as pods; None = its rights alone: watch and worker are started by hand
    under their accounts."""

    @model_validator(mode="after")
    def _repair_needs_karpenter(self) -> Self:
        if self.node_repair and not self.karpenter:
            raise ValueError("node_repair is Karpenter's: set karpenter too")
        return self


class LabPorts(BaseModel):
    """The loopback ports of one lab."""

    model_config = ConfigDict(frozen=True)

    api: int
    temporal: int
    temporal_ui: int
    karpenter: int = 0
    """Of its health endpoint; 0 in a lab without it."""


class LaunchPlan(BaseModel):
    """What a lab directory remembers: all that its supervisor needs to know."""

    model_config = ConfigDict(frozen=True)

    settings: LabSettings
    ports: LabPorts
    programs_source: str
    programs: dict[Component, Path]
