"""The cast: one node for each phase of an episode, and how it comes into the phase and out of it.

Owns the table of parts. Each part stays in its phase until the test lets it go, so that a worker
can be killed, or a Node deleted, while it stands there. Tests pick parts; `stage.py` judges.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.stage import Ending, Stage
from tests.harness.policies import TestPool, policy_body
from tests.harness.waiting import wait_until
from workers.lab.kubelet.spec import Power
from workflows.contracts.messages import Command

WIDE = "wide"
NARROW = "narrow"
"""Of this pool one node may be disrupted at a time."""
PROBATION_S = 8
LONG_S = 600
DEBOUNCE_S = {"gpu-unknown": 600, "gpu-silent": 120, "unreachable": 40}
"""By rule, where a test's second is too short: "gpu-unknown" outlasts the time in which the cast
takes its places, the other two a power cut of everything."""
STANDS_S = 90.0


def cast_pools(prefix: str) -> tuple[TestPool, TestPool]:
    """The two pools that a cast lives in."""
    budgets: dict[str, int | str] = {
        "reflex_quarantine": "100%",
        "confirmed_quarantine": "100%",
        "disruption": 1,
    }
    return TestPool(f"{prefix}-{WIDE}"), TestPool(f"{prefix}-{NARROW}", budgets=budgets)


def cast_policy() -> dict[str, Any]:
    """Changes to the test policy: nothing in it ends a phase before the test does."""
    body = policy_body([])
    rules = [
        {**rule, "debounce_s": DEBOUNCE_S.get(rule["name"], rule["debounce_s"])}
        for rule in body["rules"]
    ]
    return {
        "rules": rules,
        "faults": {
            name: {**row, "drain_deadline_s": LONG_S, "recovery_wait_s": LONG_S}
            for name, row in body["faults"].items()
        },
        "gate": {"timeout_s": LONG_S, "settle_s": 5},
        "timing": {
            "boot_deadline_s": LONG_S,
            "node_task_deadline_s": LONG_S,
            "probation_s": PROBATION_S,
        },
        "steps": {
            **body["steps"],
            # The time after which the death of a worker is known.
            "drain": {"heartbeat_s": 5},
            "reboot": {"heartbeat_s": 5},
            "inventory": {"heartbeat_s": 5},
            "diagnose": {"heartbeat_s": 5},
            "kernel_log": {"heartbeat_s": 5},
        },
    }


Step = Callable[[Stage, str], None]


@dataclass(frozen=True)
class Part:
    """One node's role.

    `enter` begins the episode, `is_there` says that the phase is reached, `leave` lets it go on.
    `after` = the part (or "all") that must stand in its phase before this one begins.
    """

    name: str
    enter: Step
    is_there: Callable[[Stage, str], bool]
    leave: Step
    ending: Ending
    pool: str = WIDE
    evictions: int = 0
    after: str = ""


def _inject(*faults: str) -> Step:
    def enter(stage: Stage, node: str) -> None:
        for fault in faults:
            stage.inject(node, fault)

    return enter


def _clear(fault: str) -> Step:
    return lambda stage, node: stage.clear(node, fault)


def _is_in(phase: str) -> Callable[[Stage, str], bool]:
    return lambda stage, node: stage.phase(node) == phase


def _enter_drain(stage: Stage, node: str) -> None:
    stage.add_pod(node, stops_for_s=LONG_S)
    stage.inject(node, "gpu-lost")


def _is_draining(stage: Stage, node: str) -> bool:
    return stage.is_terminating(f"{node}-work")


def _leave_drain(stage: Stage, node: str) -> None:
    stage.delete_pod(f"{node}-work")


def _waits_for_slot(stage: Stage, node: str) -> bool:
    marker = stage.cluster.marker(node)
    is_asking = stage.is_waiting_for_slot(node)
    return marker is not None and marker.slot is None and is_asking


def _is_reboot_asked(stage: Stage, node: str) -> bool:
    return len(stage.witness.reboots(node)) == 1


def _is_down(stage: Stage, node: str) -> bool:
    return stage.nodes.view(node).power is Power.HUNG


def _is_held(stage: Stage, node: str) -> bool:
    return stage.has_begun(node) and stage.fleet.episodes.is_held(stage.refs[node])


def _retire(stage: Stage, node: str) -> None:
    stage.fleet.episodes.tell(stage.refs[node], Command.RETIRE)


def _nothing(stage: Stage, node: str) -> None:
    """It goes on by itself."""


PARTS = (
    Part(
        "debounce",
        _inject("unknown"),
        _is_in("suspect"),
        _clear("unknown"),
        Ending("dismissed", is_marked=False),
    ),
    Part(
        "quarantined",
        _inject("kubelet-dead"),
        _is_in("quarantined"),
        _clear("kubelet-dead"),
        Ending("returned"),
    ),
    Part(
        "drain",
        _enter_drain,
        _is_draining,
        _leave_drain,
        Ending("returned", reboots=1),
        pool=NARROW,
        evictions=1,
    ),
    # "drain" holds the pool's only slot.
    Part(
        "slot",
        _inject("gpu-lost"),
        _waits_for_slot,
        _nothing,
        Ending("returned", reboots=1),
        pool=NARROW,
        after="drain",
    ),
    # The pod is there and does not start: the worker cannot know whether the node will boot.
    Part(
        "reboot",
        _inject("kubelet-dead", "gpu-lost"),
        _is_reboot_asked,
        _clear("kubelet-dead"),
        Ending("returned", reboots=1),
    ),
    Part(
        "boot",
        _inject("reboot-hangs", "gpu-lost"),
        _is_down,
        _clear("reboot-hangs"),
        Ending("returned", reboots=1),
    ),
    # Conditions that are older than the boot: the gate cannot tell until the agent speaks.
    Part(
        "gate",
        _inject("gpu-lost", "agent-silent"),
        _is_in("rebooted"),
        _clear("agent-silent"),
        Ending("returned", reboots=1),
    ),
    Part(
        "held",
        _inject("gpu-missing-after-reboot"),
        _is_held,
        _retire,
        Ending("retired", reboots=1, is_out=True),
    ),
    # Last: only this phase passes by itself.
    Part(
        "probation",
        _inject("gpu-lost"),
        _is_in("probation"),
        _nothing,
        Ending("returned", reboots=1),
        after="all",
    ),
)


def after_a_power_cut(part: Part) -> Ending:
    """How a part ends if all nodes lose their power while it stands in its phase, and boot."""
    asked = part.ending.reboots
    if part.name in ("reboot", "boot"):
        return part.ending  # what has been asked for is this boot
    if part.name in ("drain", "slot"):
        # The power cut was the repair, and the gate says so. If the Node does not tell of the boot
        # yet, a reboot is asked of the boot before, and the machine refuses it.
        return replace(part.ending, reboots=0, or_reboots=asked, boots=(1,))
    return replace(part.ending, boots=(1 + asked,))


@dataclass
class Company:
    """Parts on their nodes."""

    stage: Stage
    cast: dict[str, Part]
    """Node -> part."""

    def enter(self) -> None:
        """Returns when every node stands in its phase."""
        entered: list[str] = []
        for node, part in self.cast.items():
            for other in entered:
                if part.after in ("all", self.cast[other].name):
                    self._until_there(other)
            part.enter(self.stage, node)
            entered.append(node)
        for node in entered:
            self._until_there(node)

    def leave(self) -> None:
        """Lets every node go on."""
        for node, part in self.cast.items():
            part.leave(self.stage, node)

    def judge(self, after: Callable[[Part], Ending] = lambda part: part.ending) -> None:
        """Each ended as it would have without any disturbance, and nobody holds a place.

        Args:
            after: the ending of a part, where the disturbance is itself part of its life.
        """
        for node, part in self.cast.items():
            self.stage.judge(node, after(part))
            assert len(self.stage.witness.evictions([f"{node}-work"])) == part.evictions
        uids = {self.stage.refs[node].uid for node in self.cast}
        wait_until(
            lambda: not uids & self.stage.places(),
            STANDS_S,
            "the guard's places are free",
            saw=self.stage.ledgers,
        )

    def _until_there(self, node: str) -> None:
        part = self.cast[node]
        wait_until(
            lambda: part.is_there(self.stage, node),
            STANDS_S,
            f"{node} stands in its phase",
            saw=lambda: self.stage.shown(node),
        )


def company(stage: Stage, prefix: str, parts: Iterable[Part], **spec: Any) -> Company:
    """Nodes for these parts, healthy and without episodes; `spec` as for `TestNodes.add`.

    With `agent="real"` the parts' faults are made on the devices, and the agents find them.
    """
    cast: dict[str, Part] = {}
    chosen = list(parts)
    for pool in (WIDE, NARROW):
        here = [part for part in chosen if part.pool == pool]
        if here:
            pool_name = f"{prefix}-{pool}"
            names = stage.nodes.add_many([part.name for part in here], pool_name, **spec)
            cast |= dict(zip(names, here, strict=True))
            stage.with_real_agent |= set(names) if spec.get("agent") == "real" else set()
    stage.settle(*cast)
    order = {part.name: at for at, part in enumerate(chosen)}
    return Company(stage, dict(sorted(cast.items(), key=lambda item: order[item[1].name])))
