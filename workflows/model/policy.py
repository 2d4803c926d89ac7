"""The policy: one YAML file that says what fleetmend may do, to which nodes, and how patiently.

Owns the schema and its documented defaults (`deploy/policies/default.yaml` says the same, checked
by a test). How a document becomes a policy, and the messages for a malformed one, are
`policy_document.py`'s. Does not decide; `rules`, `ladder`, `budget` and `gate` read it. An episode
keeps the snapshot it started with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    Field,
    model_validator,
)

from workflows.model.amounts import MAX_S, Part, Seconds, Share, Timeout
from workflows.model.detection.fault import Fault
from workflows.model.upkeep import AdmissionPolicy, ValidationPolicy

MAX_POOLS = 64
MAX_RULES = 128
MAX_PROTECTED = 8
"""Namespaces: watch follows the pods of each, and each permit asks for them."""


class PolicyError(ValueError):
    """The policy cannot be used; the message names each field, its value and what is allowed."""


class DrainWay(StrEnum):
    """How the pods of a node are asked to go.

    `now` evicts at once (PDBs count), `finish-work` first waits, half the drain deadline at most,
    for the work to end, `none` touches no pod.
    """

    NOW = "now"
    FINISH_WORK = "finish-work"
    NONE = "none"


class Rung(StrEnum):
    """One repair action of a ladder."""

    REBOOT = "reboot"
    REPLACE = "replace"
    """Karpenter takes the machine away and brings another; a person does, where it cannot."""


class Posture(StrEnum):
    """Where a pool's replacements come from, and so what a replace may count on.

    `elastic`: Karpenter buys another machine if pods need one. `reserved` (a reservation or capacity
    block) and `static` (a fixed number of nodes): another comes only once the old one is gone, and
    must come. `external`: people replace machines; the node is handed over to them.
    """

    ELASTIC = "elastic"
    RESERVED = "reserved"
    STATIC = "static"
    EXTERNAL = "external"


LATER_DRAIN_WAYS = frozenset({"checkpoint"})
LATER_RUNGS = frozenset({"restart-services", "reset-gpu", "power-cycle"})


Label = Annotated[str, Field(min_length=1, max_length=253)]
NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class Budgets(Part):
    """How many nodes of a pool may be out at once; each is max(1, share of the pool)."""

    reflex_quarantine: Share = "10%"
    """Quarantines that watch makes at once, counted from the marks it made."""
    confirmed_quarantine: Share = "10%"
    """Quarantines after confirmation, granted by the guard."""
    disruption: Share = "10%"
    """Nodes that are drained or repaired at once, granted by the guard."""
    validation: Share = "10%"
    """Idle nodes that are validated at once, granted by the guard; what a validation found bad
    counts until it is back in service."""
    admission: Share = 20
    """New nodes that are examined at once, granted by the guard."""


class Pool(Part):
    """Nodes that policy treats alike: those that carry every label of `selector`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    selector: dict[Label, str] = Field(min_length=1)
    expected_gpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    """GPUs a healthy node of this pool has; None = what its label nvidia.com/gpu.count says."""
    budgets: Budgets = Budgets()
    posture: Posture | None = None
    """None = by the node: with a NodeClaim as its NodePool is (elastic or static), without one
    the rung `replace` is passed over."""
    capacity_ends: AwareDatetime | None = None
    """End of the pool's capacity block: near it nothing is replaced, for nothing would come."""
    validation: ValidationPolicy = ValidationPolicy()
    admission: AdmissionPolicy = AdmissionPolicy()


class Scope(Part):
    """Which nodes are left alone, whatever pool they are in."""

    protected_namespaces: tuple[NamespaceName, ...] = Field(
        default=("fleetmend",), max_length=MAX_PROTECTED
    )
    """A node that runs a Deployment's or StatefulSet's pod of one of these (fleetmend, Temporal,
    etcd) is neither cordoned nor disrupted while the pod is there."""


GPU_COUNT_LABEL = "nvidia.com/gpu.count"
"""Set by NVIDIA's GPU feature discovery (k8s-device-plugin, gpu-feature-discovery docs, v0.17)."""


def expected_gpus(pool: Pool, labels: Mapping[str, str]) -> int | None:
    """How many GPUs a healthy node has; None = nobody says, so no baseline may be recorded."""
    if pool.expected_gpus is not None:
        return pool.expected_gpus
    label = labels.get(GPU_COUNT_LABEL, "")
    count = int(label) if re.fullmatch(r"[0-9]{1,4}", label) else 0
    return count if 0 < count <= 1024 else None


class Rule(Part):
    """One row: a node condition with this status (and one of these reasons) is this fault.

    The first row that fits a condition counts. `Stale` fits a condition that is absent, older
    than the node's boot, or silent for longer than `silence_s`; it is never immediate.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    condition: Label
    status: Literal["True", "False", "Unknown", "Stale"]
    reasons: tuple[Label, ...] = ()
    """Reasons that fit; empty = any."""
    fault: Fault
    immediate: bool = False
    """Quarantine at once, without waiting for Temporal."""
    debounce_s: Seconds = 60
    """How long it must last before it is believed; not used for immediate rows."""

    @model_validator(mode="after")
    def _never_immediate_on_unknown(self) -> Rule:
        if self.immediate and self.status in ("Unknown", "Stale"):
            raise ValueError("immediate: Unknown and Stale are never immediate; remove it")
        return self


class FaultPolicy(Part):
    """What is done about one fault class."""

    drain: DrainWay = DrainWay.NOW
    drain_deadline_s: Seconds = 1800
    ladder: tuple[Rung, ...] = (Rung.REBOOT, Rung.REPLACE)
    recovery_wait_s: Seconds = 900
    """With an empty ladder: how long a quarantined node may recover by itself before it is held."""
    diagnose_level: Annotated[int, Field(ge=0, le=4)] = 2
    """Level of DCGM's diagnostic that the gate asks for; 0 = none. Above 1 it loads the GPUs, so a
    node that was not drained gets 1 at most."""

    @model_validator(mode="before")
    @classmethod
    def _name_what_comes_later(cls, value: Any) -> Any:
        if isinstance(value, dict):
            way, rungs = value.get("drain"), value.get("ladder")
            if isinstance(way, str) and way in LATER_DRAIN_WAYS:
                raise ValueError(
                    f"drain: {way!r} is not in this release yet; use one of {', '.join(DrainWay)}"
                )
            listed = rungs if isinstance(rungs, (list, tuple)) else ()
            later = [rung for rung in listed if isinstance(rung, str) and rung in LATER_RUNGS]
            if later:
                raise ValueError(
                    f"ladder: {later[0]!r} is not in this release yet; use {', '.join(Rung)}"
                )
        return value


DiagnoseLimit = Annotated[float, Field(gt=0, le=14_400, allow_inf_nan=False)]


class GatePolicy(Part):
    """What a node must pass to return, and how long it may take to answer."""

    conditions: tuple[Label, ...] = (
        "GPUHealthy",
        "InterconnectHealthy",
        "NetworkHealthy",
        "HostHealthy",
    )
    """Each must be True, and reported during the present boot."""
    timeout_s: Seconds = 900
    """Unknown is asked again until then; after it the node is held."""
    settle_s: Seconds = 300
    """How long allocatable GPUs may be below the baseline before that counts as failed."""
    diagnose_limits_s: tuple[DiagnoseLimit, DiagnoseLimit, DiagnoseLimit, DiagnoseLimit] = (
        120,
        600,
        2700,
        14_400,
    )
    """Wall clock of DCGM's diagnostic at levels 1 to 4; past it, it is ended and has no answer."""


class Timing(Part):
    """How patient an episode is."""

    silence_s: Seconds = 900
    """A condition that was not refreshed for this long is Stale."""
    boot_deadline_s: Seconds = 1200
    """From the request of a reboot to its proof."""
    removal_deadline_s: Seconds = 1800
    """From the deletion of a NodeClaim until it and its Node are gone; then people are asked."""
    probation_s: Seconds = 1800
    """How long the episode watches a node that it gave back."""
    node_task_deadline_s: Annotated[float, Field(ge=1, le=3600)] = 120
    reminder_s: Annotated[float, Field(ge=1, le=MAX_S, allow_inf_nan=False)] = 86_400
    """How often a held episode reminds people."""


class StepOptions(Part):
    """Overrides of one row of the options table (`contracts/options.py`), by step name."""

    start_to_close_s: Timeout | None = None
    heartbeat_s: Timeout | None = None
    retry_initial_s: Timeout | None = None
    retry_maximum_s: Timeout | None = None


def _default_pools() -> tuple[Pool, ...]:
    return (Pool(name="gpu", selector={"nvidia.com/gpu.present": "true"}),)


def _default_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            name="gpu-lost",
            condition="GPUHealthy",
            status="False",
            reasons=("GpuLost",),
            fault=Fault.GPU_LOST,
            immediate=True,
        ),
        Rule(
            name="gpu-memory",
            condition="GPUHealthy",
            status="False",
            reasons=("GpuMemoryUncorrectable",),
            fault=Fault.GPU_MEMORY_UNCORRECTABLE,
            immediate=True,
        ),
        Rule(
            name="gpu-memory-contained",
            condition="GPUHealthy",
            status="False",
            reasons=("GpuMemoryContained",),
            fault=Fault.GPU_MEMORY_CONTAINED,
            immediate=True,
        ),
        Rule(
            name="gpu-driver",
            condition="GPUHealthy",
            status="False",
            reasons=("GpuDriver",),
            fault=Fault.GPU_DRIVER,
            immediate=True,
        ),
        Rule(
            name="gpu-thermal",
            condition="GPUHealthy",
            status="False",
            reasons=("Thermal",),
            fault=Fault.THERMAL,
            debounce_s=300,
        ),
        Rule(
            name="gpu-unhealthy",
            condition="GPUHealthy",
            status="False",
            fault=Fault.DIAGNOSTIC_UNKNOWN,
            debounce_s=60,
        ),
        Rule(
            name="gpu-unknown",
            condition="GPUHealthy",
            status="Unknown",
            fault=Fault.DIAGNOSTIC_UNKNOWN,
            debounce_s=300,
        ),
        Rule(
            name="gpu-silent",
            condition="GPUHealthy",
            status="Stale",
            fault=Fault.DIAGNOSTIC_UNKNOWN,
            debounce_s=600,
        ),
        Rule(
            name="interconnect",
            condition="InterconnectHealthy",
            status="False",
            fault=Fault.INTERCONNECT,
            debounce_s=30,
        ),
        Rule(
            name="network",
            condition="NetworkHealthy",
            status="False",
            fault=Fault.NETWORK,
            debounce_s=120,
        ),
        Rule(
            name="host",
            condition="HostHealthy",
            status="False",
            fault=Fault.DIAGNOSTIC_UNKNOWN,
            debounce_s=120,
        ),
        Rule(
            name="not-ready",
            condition="Ready",
            status="False",
            fault=Fault.HOST_UNREACHABLE,
            debounce_s=600,
        ),
        Rule(
            name="unreachable",
            condition="Ready",
            status="Unknown",
            fault=Fault.HOST_UNREACHABLE,
            debounce_s=600,
        ),
    )


def _default_faults() -> dict[Fault, FaultPolicy]:
    wait_only = FaultPolicy(drain=DrainWay.NONE, ladder=(), diagnose_level=1)
    return {
        Fault.GPU_LOST: FaultPolicy(),
        Fault.GPU_MEMORY_UNCORRECTABLE: FaultPolicy(),
        Fault.GPU_MEMORY_CONTAINED: FaultPolicy(drain=DrainWay.FINISH_WORK),
        Fault.GPU_DRIVER: FaultPolicy(),
        Fault.INTERCONNECT: FaultPolicy(),
        Fault.THERMAL: FaultPolicy(drain=DrainWay.FINISH_WORK, ladder=(), diagnose_level=1),
        Fault.NETWORK: FaultPolicy(drain=DrainWay.FINISH_WORK, diagnose_level=1),
        Fault.HOST_UNREACHABLE: wait_only,
        Fault.DIAGNOSTIC_UNKNOWN: wait_only,
        Fault.DIAGNOSTIC_FAILED: FaultPolicy(),
        Fault.OPERATOR: FaultPolicy(ladder=(), diagnose_level=1),
    }


class Policy(Part):
    """Everything a person may set. An empty file is the built-in policy."""

    pools: tuple[Pool, ...] = Field(default_factory=_default_pools, max_length=MAX_POOLS)
    scope: Scope = Scope()
    rules: tuple[Rule, ...] = Field(default_factory=_default_rules, max_length=MAX_RULES)
    faults: dict[Fault, FaultPolicy] = Field(default_factory=_default_faults)
    gate: GatePolicy = GatePolicy()
    timing: Timing = Timing()
    arming_share: Share = "20%"
    """A policy that matches more than this share of a pool right now refuses to arm it."""
    steps: dict[str, StepOptions] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _defaults_for_faults_left_out(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("faults"), dict):
            given = value["faults"]
            value = {**value, "faults": {**_default_faults(), **given}}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Policy:
        for what, names in (
            ("pools", [pool.name for pool in self.pools]),
            ("rules", [rule.name for rule in self.rules]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: name {twice[0]!r} is used twice; names are unique")
        _refuse_pools_without_nodes(self.pools)
        for fault in (Fault.DIAGNOSTIC_UNKNOWN, Fault.HOST_UNREACHABLE):
            row = self.faults[fault]
            if row.drain is not DrainWay.NONE or row.ladder:
                raise ValueError(
                    f"faults.{fault}: unknown health never evicts, reboots or replaces by itself; "
                    "use drain: none and ladder: []"
                )
        return self

    def pool_of(self, labels: Mapping[str, str]) -> Pool | None:
        """The first pool whose selector fits; None = out of scope."""
        for pool in self.pools:
            if all(labels.get(key) == value for key, value in pool.selector.items()):
                return pool
        return None

    def pool_named(self, name: str) -> Pool | None:
        """The pool of that name."""
        return next((pool for pool in self.pools if pool.name == name), None)


def _refuse_pools_without_nodes(pools: tuple[Pool, ...]) -> None:
    """The first pool that fits a node has it: what stands behind one that fits more has none."""
    for number, pool in enumerate(pools):
        for before in pools[:number]:
            if before.selector == pool.selector:
                why, remedy = "have the same selector", "give each its own, or leave one out"
            elif before.selector.items() <= pool.selector.items():
                why = f"overlap: the first takes every node of {pool.name!r}"
                remedy = f"put {pool.name!r} first"
            else:
                continue
            raise ValueError(f"pools: {before.name!r} and {pool.name!r} {why}; {remedy}")
