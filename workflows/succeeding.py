"""Succeeding: the newcomer that takes a replaced machine's place is examined before it counts.

Owns the examination in its thin form: no rule matches, the GPUs are as many as promised, the node
itself counts them and DCGM finds nothing, and it is not the same iron once more. It puts no load on
the node and no mark: work may run there already. A newcomer with the startup taint is its own run's
(`admitting.py`), which alone takes the taint off: here that is waited for. Called by `replacing.py`.
"""

from dataclasses import replace
from datetime import timedelta

from workflows.contracts.kube import READ_NODE, Owner, Reading
from workflows.contracts.machines import RECORD_BASELINE, baseline_request
from workflows.contracts.node_tasks import DIAGNOSE, INVENTORY, NodeTaskRequest, TaskAnswer
from workflows.diagnosing import judge_diagnosis
from workflows.episode import Episode
from workflows.model.identity import NodeRef
from workflows.model.node_task import IDLE_LEVEL, Result, TaskKind
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.gate import Judgement, Verdict, judge_conditions
from workflows.model.remediation.marks import is_marked
from workflows.model.remediation.replacement import GPU_RESOURCE, Successor
from workflows.pacing import pause_after
from workflows.places import free_slot
from workflows.runtime import Runtime
from workflows.telling import publish

AWAIT_ADMISSION_S = (*(10.0,) * 6, *(30.0,) * 20, *(300.0,) * 12, 3600.0)
"""Seconds between two looks at a newcomer whose own run examines it: that takes minutes, or, if it
is held, weeks; each look is history."""


async def admit(run: Runtime, episode: Episode, successor: Successor) -> Judgement:
    """Passed, failed, or unknown still at the gate's deadline.

    Raises:
        NodeGone: the newcomer has vanished.
    """
    reading = await run.step(READ_NODE, Owner(successor.node, episode.id))
    if is_newcomer(reading.node):
        refused, reading = await await_admission(run, episode, reading)
        if refused is not None:
            return refused
    begun, looks = run.now(), 0
    limit = timedelta(seconds=episode.policy.gate.timeout_s)
    while True:
        waited_s = (run.now() - begun).total_seconds()
        judged = await examine(run, episode, successor, reading, waited_s)
        left = begun + limit - run.now()
        if judged.verdict is not Verdict.UNKNOWN or left <= timedelta():
            words = "; ".join(judged.reasons[:4])
            run.inbox.tell(run.now(), f"Node {successor.node.name} {judged.verdict}: {words}")
            return judged
        await run.wait(lambda _: False, min(left, pause_after(looks)))
        looks += 1
        reading = await run.step(READ_NODE, Owner(successor.node, episode.id))


async def await_admission(
    run: Runtime, episode: Episode, reading: Reading
) -> tuple[Judgement | None, Reading]:
    """Until the newcomer's own run has let it in; a judgement = people must look.

    If that run has taken it out of service, our slot may be the very one it needs to replace it.
    """
    name, looks, told = reading.node.name, 0, ""
    while is_newcomer(reading.node):
        words = f"Node {name} came; its own run examines it and takes the startup taint off"
        if is_marked(reading.node):
            await free_slot(run, episode)
            words = f"Node {name} came and is out of service: it has an episode of its own"
        if words != told:
            await publish(run, episode, words, "await its admission")
            told = words
        has_failed = reading.marker is not None and bool(reading.marker.handed_over)
        if has_failed or run.inbox.retire is not None:
            why = "it was handed over to people" if has_failed else "its admission has not ended"
            return Judgement(Verdict.UNKNOWN, (why,)), reading
        pace = pause_after(looks, AWAIT_ADMISSION_S)
        await run.wait(lambda inbox: inbox.retire is not None, pace)
        reading = await run.step(READ_NODE, Owner(NodeRef(name, reading.node.uid), episode.id))
        looks += 1
    return None, reading


async def examine(
    run: Runtime, episode: Episode, successor: Successor, reading: Reading, waited_s: float
) -> Judgement:
    """One look; what takes minutes is only asked for if all before it was good."""
    owner = Owner(successor.node, episode.id)
    conditions = judge_conditions(reading.node, episode.policy, run.now())
    if conditions.verdict is not Verdict.PASSED:
        return conditions
    expected = expected_of(episode, successor)
    if not expected:
        return Judgement(Verdict.UNKNOWN, ("nobody says how many GPUs it has: set expected_gpus",))
    offered = reading.node.gpus.get(GPU_RESOURCE, 0)
    if offered < expected:
        is_settled = waited_s >= episode.policy.gate.settle_s
        verdict = Verdict.FAILED if is_settled else Verdict.UNKNOWN
        return Judgement(verdict, (f"it offers {offered} GPUs of {expected}",))
    counted = await run.step(INVENTORY, task(run, episode, owner, TaskKind.INVENTORY))
    baseline = episode.machine.baseline if episode.machine else None
    given_away = baseline.gpus if baseline else ()
    judged = judge_count(reading, counted, expected, given_away)
    if judged.verdict is not Verdict.PASSED:
        return judged
    asked = diagnosis_of(run, episode, reading, IDLE_LEVEL, expected)
    judged = judge_diagnosis(await run.step(DIAGNOSE, asked), reading.node.boot_id)
    if judged.verdict is Verdict.PASSED:
        await record_baseline(run, episode, owner, reading, counted)
    return judged


def expected_of(episode: Episode, successor: Successor) -> int:
    """What the pool expects, or what its claim promises; 0 = nobody says."""
    pool = episode.pool_policy
    return (pool.expected_gpus if pool else None) or successor.gpus


def judge_count(
    reading: Reading, counted: TaskAnswer, expected: int, given_away: tuple[str, ...] = ()
) -> Judgement:
    """As many as expected, in this boot, and none of those that were given away."""
    if counted.result is not Result.DONE:
        return Judgement(Verdict.UNKNOWN, (f"inventory: {counted.detail}",))
    if not counted.boot_id or counted.boot_id != reading.node.boot_id:
        return Judgement(Verdict.UNKNOWN, ("the inventory was taken in another boot",))
    back = sorted(set(counted.gpus) & set(given_away))
    if back:
        return Judgement(
            Verdict.FAILED, (f"the same machine came back: it has GPU {back[0]} of the old one",)
        )
    found = len(set(counted.gpus))
    if found != expected:
        return Judgement(Verdict.FAILED, (f"it counts {found} GPUs of {expected}",))
    return Judgement(Verdict.PASSED)


def diagnosis_of(
    run: Runtime, episode: Episode, reading: Reading, level: int, expected: int
) -> NodeTaskRequest:
    """DCGM's diagnostic on the newcomer; level 1 puts no load on the GPUs."""
    node = reading.node
    limit_s = episode.policy.gate.diagnose_limits_s[level - 1]
    owner = Owner(NodeRef(node.name, node.uid), episode.id)
    plain = task(run, episode, owner, TaskKind.DIAGNOSE)
    return replace(
        plain,
        deadline_s=limit_s + plain.deadline_s,
        expected_boot_id=node.boot_id,
        level=level,
        expected_gpus=expected,
        limit_s=limit_s,
    )


def task(run: Runtime, episode: Episode, owner: Owner, kind: TaskKind) -> NodeTaskRequest:
    """A task on the newcomer, of its own name at each look."""
    return NodeTaskRequest(
        owner=owner,
        kind=kind,
        step=f"admit-{run.now():%H%M%S%f}",
        deadline_s=episode.policy.timing.node_task_deadline_s,
    )


async def record_baseline(
    run: Runtime, episode: Episode, owner: Owner, reading: Reading, counted: TaskAnswer
) -> None:
    """What a machine had when it was found well is what it must have from now on.

    One that stands already is not overwritten.
    """
    request = baseline_request(owner, episode.pool, reading, counted, run.now())
    done = await run.step(RECORD_BASELINE, request)
    if done.refused:
        run.inbox.tell(run.now(), f"no baseline of Node {reading.node.name}: {done.refused}")
