"""The scenes that are recorded: one for each outcome, and for each moment that once went wrong.

Owns the node's fate and what people say in each; the stage carries it out. The name of a scene is
the name of its history. A new outcome or a mended interleaving brings its scene.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.replay.stage import Stage
from tests.workflows.karpenter_world import KarpenterWorld
from tests.workflows.newcomer_world import bought
from tests.workflows.world import GPUS, NODE, POLICY, World, diagnosed, report_of, xid
from workflows.contracts.messages import Opening, ValidationOrder
from workflows.memory_runtime import START
from workflows.model.node_task import Failure, Health
from workflows.model.policy import GatePolicy, Policy, Timing
from workflows.model.remediation.marks import Marker, Quarantine

WATCH = Opening(NODE, "test", "ep-1", "training", "watch")
SWEEP = Opening(NODE, "test", "ep-9", "training", "sweep", recover=True)
ALICE = Opening(NODE, "test", "ep-1", "training", "alice", operator_reason="replace a fan")
IDLE = Opening(
    NODE,
    "test",
    "ep-1",
    "training",
    "schedule",
    validation=ValidationOrder(2, 60, datetime(2100, 1, 1, tzinfo=UTC)),
)
BOOT = timedelta(seconds=0.3)
NEVER = timedelta(hours=1)
Play = Callable[[Stage], Awaitable[None]]


def impatient() -> Policy:
    """The tests' policy with times of a second or less."""
    faults = {
        fault: row.model_copy(update={"drain_deadline_s": 20.0, "recovery_wait_s": 1.0})
        for fault, row in POLICY.faults.items()
    }
    changes = {
        "rules": tuple(rule.model_copy(update={"debounce_s": 0.5}) for rule in POLICY.rules),
        "faults": faults,
        "gate": GatePolicy(timeout_s=1, settle_s=0.2),
        "timing": Timing(boot_deadline_s=2, probation_s=0.5),
    }
    return POLICY.model_copy(update=changes)


def told_in_time() -> World:
    """It never boots, and a person's word comes before the deadline however slow the worker is."""
    policy = impatient()
    timing = policy.timing.model_copy(update={"boot_deadline_s": 60.0})
    return lost_gpu(boot_takes=NEVER, policy=policy.model_copy(update={"timing": timing}))


def relapses_in_time() -> World:
    """Its probation lasts until the relapse is reported, however slow the worker is."""
    policy = impatient()
    timing = policy.timing.model_copy(update={"probation_s": 10.0})
    return lost_gpu(policy=policy.model_copy(update={"timing": timing}))


def lost_gpu(**changes: Any) -> World:
    """Quarantined by watch's reflex as ep-1."""
    world = World(**{"policy": impatient(), "boot_takes": BOOT, **changes})
    world.bad["GPUHealthy"] = ("False", "GpuLost")
    world.marker = Marker("ep-1", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    return world


def from_karpenter(**changes: Any) -> World:
    """As `lost_gpu`, on a node that Karpenter made; a reboot does not mend it."""
    soon = {"removal_takes": BOOT, "comes": BOOT, "gpus_after_boot": GPUS[:7]}
    world = KarpenterWorld(**{"policy": impatient(), "boot_takes": BOOT, **soon, **changes})
    world.bad["GPUHealthy"] = ("False", "GpuLost")
    world.marker = Marker("ep-1", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    return world


def newcomer(**changes: Any) -> World:
    """With the startup taint, made by Karpenter."""
    soon = {"removal_takes": BOOT, "comes": BOOT}
    world = bought(**{"policy": impatient(), **soon, **changes})
    pool = world.policy.pools[0]
    rule = pool.admission.model_copy(update={"timeout_s": 1.0})
    pools = (pool.model_copy(update={"admission": rule}),)
    world.policy = world.policy.model_copy(update={"pools": pools})
    return world


def missing_gpu() -> World:
    return lost_gpu(gpus_after_boot=GPUS[:7])


def ill(condition: str, reason: str, status: str = "False", **changes: Any) -> World:
    """Not marked yet."""
    world = World(**{"policy": impatient(), "boot_takes": BOOT, **changes})
    world.bad[condition] = (status, reason)
    return world


def unknown() -> World:
    return ill("GPUHealthy", "DiagnosticUnknown", "Unknown")


def told_by_the_kernel() -> World:
    world = unknown()
    world.kernel_log_says = diagnosed(Health.FAULTY, xid(79, "gpu-lost"))
    return world


def without_a_diagnosis() -> World:
    return lost_gpu(diagnoses=[diagnosed(Health.UNKNOWN)])


def idle(**changes: Any) -> World:
    return World(**{"policy": impatient(), "boot_takes": BOOT, "pods": 0, **changes})


def weak() -> World:
    """A GPU that fails its diagnosis until the node has booted."""
    bad = diagnosed(Health.FAULTY, Failure(what="memory", device="GPU 3", words="a comparison"))
    return idle(diagnoses=[bad, bad, diagnosed(Health.HEALTHY)])


async def nothing(stage: Stage) -> None:
    """Nobody says anything."""


async def recovers_in_the_debounce(stage: Stage) -> None:
    await stage.until(lambda s: any("must last" in r.detail for r in s.records))
    await stage.change(stage.world.bad.clear)


async def retire_when_held(stage: Stage) -> None:
    await stage.until_held()
    await stage.say("retire")


async def let_in_by_hand(stage: Stage) -> None:
    await stage.until_held()
    await stage.change(lambda: setattr(stage.world, "taints", ()))


async def recovers_in_quarantine(stage: Stage) -> None:
    await stage.until_phase("quarantined")
    await stage.change(stage.world.bad.clear)


async def mended_by_hand(stage: Stage) -> None:
    await stage.until_held()
    stage.world.gpus = GPUS
    await stage.say("resume")


async def denied_then_retired(stage: Stage) -> None:
    await stage.until_held()
    await stage.say("deny")
    await stage.say("retire")


async def deleted_in_the_drain(stage: Stage) -> None:
    go = stage.block("drain")
    await stage.until_called("drain")
    await stage.change(lambda: setattr(stage.world, "gone", True))
    go.set()


async def retire_in_the_drain(stage: Stage) -> None:
    stage.block("drain")
    await stage.until_called("drain")
    await stage.say("retire")
    await stage.until(lambda s: s.calls.count("read_node") > 1 or s.calls.count("drain") > 1)
    stage.blocked["drain"].set()


async def retire_in_the_reboot(stage: Stage) -> None:
    await stage.until_called("await_reboot")
    await stage.say("retire")


async def paused_in(stage: Stage, step: str) -> None:
    """A person's pause arrives while the step runs; returns when the run stands still after it."""
    go = stage.block(step)
    await stage.until_called(step)
    await stage.say("pause")
    go.set()
    await stage.until_story("paused before")


async def retire_while_paused(stage: Stage) -> None:
    await paused_in(stage, "open_episode")
    await stage.say("retire")


async def pause_and_resume(stage: Stage) -> None:
    await paused_in(stage, "note_slot")
    await stage.say("resume")


async def pause_before_the_give_back(stage: Stage) -> None:
    await paused_in(stage, "diagnose")
    await stage.until_story("paused before give_back")
    await stage.say("resume")


async def finding_at_the_close(stage: Stage) -> None:
    async def relapse() -> None:
        stage.world.marker = Marker(
            "ep-2", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX
        )
        stage.world.unschedulable = True
        await reported_again(stage)

    stage.at_close = relapse
    await retire_when_held(stage)


async def removes_the_cordon(stage: Stage) -> None:
    go = stage.block("drain")
    await stage.until_called("drain")

    def overrule() -> None:
        stage.world.unschedulable, stage.world.marker = False, None

    await stage.change(overrule)
    go.set()
    await stage.until_held()


async def overruled_then_resumed(stage: Stage) -> None:
    await removes_the_cordon(stage)
    await stage.say("resume")


async def overruled_then_booted(stage: Stage) -> None:
    await removes_the_cordon(stage)
    await stage.change(lambda: setattr(stage.world, "boots", 9))


async def relapse_in_probation(stage: Stage) -> None:
    await stage.until_phase("probation")
    await reported_again(stage)
    await retire_when_held(stage)


async def reported_again(stage: Stage) -> None:
    stage.world.fail("GPUHealthy", "GpuLost")
    await stage.send()
    report = report_of(stage.world, "ep-2", stage.surroundings.now())
    await stage.handle.signal("report", report)


async def worse_in_the_wait(stage: Stage) -> None:
    await stage.until_phase("quarantined")
    stage.world.fail("GPUHealthy", "GpuLost")
    await stage.send()
    report = report_of(stage.world, "ep-1", stage.surroundings.now())
    await stage.handle.signal("report", report)


async def unblocked_and_approved(stage: Stage) -> None:
    await stage.until_held()
    stage.world.blocked = False
    await stage.say("approve")


async def allowed_again(stage: Stage) -> None:
    await stage.until_called("await_permit")
    stage.forbidden.clear()
    await stage.change(lambda: None)


async def closed_by_a_person(stage: Stage) -> None:
    await stage.until_phase("awaiting-capacity")
    await stage.say("retire")


async def karpenter_reboots(stage: Stage) -> None:
    go = stage.block("drain")
    await stage.until_called("drain")
    stage.world.taints = ("karpenter.sh/rebooting:NoSchedule",)
    go.set()


async def mended_step(stage: Stage) -> None:
    await stage.until_held()
    stage.broken.clear()
    await stage.say("resume")


@dataclass(frozen=True)
class Scene:
    """`outcome` is what the episode must end as; `told` is the word that a person opens it with."""

    name: str
    outcome: str
    world: Callable[[], World]
    play: Play = nothing
    opening: Opening = WATCH
    told: str = ""
    forbidden: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


SCENES = (
    Scene("returned", "returned", lost_gpu),
    Scene("dismissed", "dismissed", unknown, recovers_in_the_debounce),
    Scene("held-then-retired", "retired", missing_gpu, retire_when_held),
    Scene("held-then-resumed-returned", "returned", missing_gpu, mended_by_hand),
    Scene("unknown-held-denied-retired", "retired", unknown, denied_then_retired),
    Scene("vanished", "vanished", lost_gpu, deleted_in_the_drain),
    Scene(
        "yielded",
        "yielded",
        lambda: ill("GPUHealthy", "GpuLost", taints=("karpenter.sh/disrupted:NoSchedule",)),
    ),
    Scene(
        "retired-by-operator",
        "retired",
        lambda: World(policy=impatient()),
        nothing,
        ALICE,
        "retire",
    ),
    Scene("retire-in-drain", "retired", lost_gpu, retire_in_the_drain),
    Scene("retire-in-reboot", "retired", told_in_time, retire_in_the_reboot),
    Scene("retire-while-paused", "retired", lost_gpu, retire_while_paused),
    Scene("pause-and-resume", "returned", lost_gpu, pause_and_resume),
    Scene("pause-before-the-give-back", "returned", lost_gpu, pause_before_the_give_back),
    Scene("reboot-not-done", "retired", lambda: lost_gpu(listens=False), retire_when_held),
    Scene("overruled-then-resumed", "returned", lost_gpu, overruled_then_resumed),
    Scene("overruled-then-booted", "yielded", lost_gpu, overruled_then_booted),
    Scene("relapse-in-probation", "retired", relapses_in_time, relapse_in_probation),
    Scene("finding-at-the-close", "retired", lost_gpu, finding_at_the_close),
    Scene("worse-finding", "returned", unknown, worse_in_the_wait),
    Scene("kernel-log-told", "returned", told_by_the_kernel),
    Scene("kernel-log-clean", "returned", unknown, recovers_in_quarantine),
    Scene("diagnosis-unknown", "retired", without_a_diagnosis, retire_when_held),
    Scene("network-finish-work", "returned", lambda: ill("NetworkHealthy", "Network")),
    Scene(
        "blocked-drain-approved", "returned", lambda: lost_gpu(blocked=True), unblocked_and_approved
    ),
    Scene("not-permitted-for-a-while", "returned", lost_gpu, allowed_again, forbidden=("drain",)),
    Scene("stuck-then-resumed", "returned", lost_gpu, mended_step, broken=("note_slot",)),
    Scene("replaced", "replaced", from_karpenter),
    Scene("retire-replaced", "replaced", from_karpenter, retire_in_the_drain),
    Scene(
        "awaiting-capacity-closed",
        "replaced",
        lambda: from_karpenter(comes=None),
        closed_by_a_person,
    ),
    Scene("karpenter-was-first", "yielded", from_karpenter, karpenter_reboots),
    Scene("validated", "returned", idle, opening=IDLE),
    Scene("validation-gave-way", "returned", lambda: idle(work="jobs/early"), opening=IDLE),
    Scene("validation-failed", "returned", weak, opening=IDLE),
    Scene("admitted", "returned", newcomer),
    Scene("admission-refused", "replaced", lambda: newcomer(gpus=GPUS[:7])),
    Scene("admission-by-hand", "dismissed", lambda: newcomer(gpus=(*GPUS, "x")), let_in_by_hand),
    Scene("recovered-by-the-sweep", "returned", lambda: replace(lost_gpu(), bad={}), opening=SWEEP),
)
