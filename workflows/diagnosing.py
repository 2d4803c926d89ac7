"""Diagnosing: DCGM's word on the GPUs, and the kernel log's where DCGM has none.

Owns the two questions that an episode asks the node itself about its health, and how far an answer
counts: only a whole and healthy one certifies, and only what the kernel said of the hardware makes
an unknown fault a known one. Called by the runbook and by the gate.
"""

from datetime import datetime, timedelta

from workflows.contracts import Contract
from workflows.contracts.kube import Reading
from workflows.contracts.machines import Validation
from workflows.contracts.node_tasks import DIAGNOSE, KERNEL_LOG, NodeTaskRequest, TaskAnswer
from workflows.episode import Episode
from workflows.model.detection.fault import SEVERITY, UNKNOWN_KIND, Fault
from workflows.model.node_task import IDLE_LEVEL, Failure, Health, Result, TaskKind
from workflows.model.policy import DrainWay
from workflows.model.remediation.gate import Judgement, Verdict
from workflows.model.remediation.overrule import was_undone
from workflows.runtime import Runtime
from workflows.telling import publish

BEFORE_THE_FAULT = timedelta(hours=1)
"""How far before the first sight of an unknown fault the kernel log is read: what hangs a
diagnostic comes before it, and the clocks of node and cluster may differ."""
MAX_REASONS = 4


class GaveWay(Exception):
    """A validation was broken off: a pod uses the node's GPUs, or waits for such a node."""


async def ask_node(
    run: Runtime, contract: Contract[NodeTaskRequest, TaskAnswer], request: NodeTaskRequest
) -> TaskAnswer:
    """What the node itself answers.

    Raises:
        GaveWay: the request gives way, and a pod needs the node.
    """
    answer = await run.step(contract, request)
    if answer.gave_way_to:
        raise GaveWay(answer.gave_way_to)
    return answer


async def diagnose(run: Runtime, episode: Episode, reading: Reading) -> Judgement:
    """DCGM's diagnostic at the class's level; faulty is failed, and all but healthy is unknown."""
    level, policy = level_of(episode), episode.policy
    baseline = reading.machine.baseline
    if level == 0 or baseline is None:
        return Judgement(Verdict.PASSED)
    limit_s = policy.gate.diagnose_limits_s[level - 1]
    asked = NodeTaskRequest(
        owner=episode.owner,
        kind=TaskKind.DIAGNOSE,
        step=f"diagnose-{len(episode.tried)}-{run.now():%H%M%S%f}",
        deadline_s=limit_s + policy.timing.node_task_deadline_s,
        expected_boot_id=reading.node.boot_id,
        level=level,
        expected_gpus=len(baseline.gpus),
        limit_s=limit_s,
        needs_drained=not is_validated(episode),
        needs_idle=is_validated(episode),
        gives_way=episode.order is not None,
    )
    answer = await ask_node(run, DIAGNOSE, asked)
    episode.failures = answer.failures if answer.health is Health.FAULTY else ()
    judged = judge_diagnosis(answer, reading.node.boot_id)
    words = "; ".join(judged.reasons) or answer.detail
    episode.validation = Validation(run.now(), judged.verdict.value, level, words)
    return judged


def level_of(episode: Episode) -> int:
    """The class's level; load is put only on a node that this episode has drained.

    A validation has its own, and what it did not pass is asked again at no less: then the task is
    only begun on a node whose GPUs nobody uses.
    """
    if episode.order is not None:
        return episode.order.level
    treatment = episode.treatment
    is_idle = episode.drained and treatment.drain is not DrainWay.NONE
    level = treatment.diagnose_level if is_idle else min(treatment.diagnose_level, IDLE_LEVEL)
    return max(level, episode.doubted_level)


def is_validated(episode: Episode) -> bool:
    """True if the level comes from a validation: an idle node is enough, it need not be drained."""
    return not episode.drained and (episode.order is not None or episode.doubted_level > 0)


def judge_diagnosis(answer: TaskAnswer, boot_id: str) -> Judgement:
    """What a diagnosis proves about the boot that stands now."""
    if answer.result is not Result.DONE or answer.health is Health.UNKNOWN:
        return Judgement(Verdict.UNKNOWN, (f"diagnosis: {answer.detail}",))
    if not boot_id or answer.boot_id != boot_id:
        return Judgement(Verdict.UNKNOWN, ("the diagnosis was made in another boot",))
    if answer.health is Health.FAULTY:
        reasons = tuple(f"diagnosis: {failure}" for failure in answer.failures[:MAX_REASONS])
        return Judgement(Verdict.FAILED, reasons)
    return Judgement(Verdict.PASSED)


async def ask_the_kernel(run: Runtime, episode: Episode) -> Judgement | None:
    """The second source on a fault of unknown kind: a hardware Xid makes the episode its class.

    None = it could be read, and the episode goes on as what it is now.
    """
    asked = NodeTaskRequest(
        owner=episode.owner,
        kind=TaskKind.KERNEL_LOG,
        step=f"kernel-log-{run.now():%H%M%S%f}",
        deadline_s=episode.policy.timing.node_task_deadline_s,
        since=first_sight(episode),
    )
    answer = await run.step(KERNEL_LOG, asked)
    if answer.health is Health.HEALTHY:
        run.inbox.tell(run.now(), f"the kernel log is clean: {answer.detail}")
        return None
    hardware = hardware_in(answer.failures)
    if answer.health is not Health.FAULTY or not hardware:
        return Judgement(Verdict.UNKNOWN, (f"kernel log: {answer.detail}",))
    boot, undone = answer.boot_id, episode.overrules
    fresh = [f for f in hardware if not was_undone(Fault(f.fault), devices_of(f), boot, undone)]
    if not fresh:
        run.inbox.tell(run.now(), f"a person has seen all of the kernel log's: {answer.detail}")
        return None
    found = fresh[0]
    episode.learn(Fault(found.fault), KERNEL_LOG.name)
    run.inbox.fault = episode.fault
    await publish(run, episode, f"{episode.fault}: kernel log: {found}", "take a slot")
    return None


def first_sight(episode: Episode) -> datetime | None:
    """Since when the kernel log is asked; None = the whole boot."""
    seen = episode.match.since if episode.match else None
    marked = episode.marker.since if episode.marker else None
    moments = [moment for moment in (seen, marked) if moment is not None]
    return min(moments) - BEFORE_THE_FAULT if moments else None


def hardware_in(failures: tuple[Failure, ...]) -> list[Failure]:
    """Those whose class is hardware's, in words of this release; the gravest first."""
    unnamed = UNKNOWN_KIND | {Fault.OPERATOR, Fault.DIAGNOSTIC_FAILED}
    known = [f for f in failures if f.fault in set(Fault) - unnamed]
    return sorted(known, key=lambda f: -SEVERITY[Fault(f.fault)])


def devices_of(failure: Failure) -> tuple[str, ...]:
    """As a rule's match would name them."""
    return (failure.device,) if failure.device else ()
