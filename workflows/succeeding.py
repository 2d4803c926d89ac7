"""Succeeding: the newcomer that takes a replaced machine's place is examined before it counts.

Owns the examination in its thin form: no rule matches, the GPUs are as many as promised, the node
itself counts them and DCGM finds nothing, and it is not the same iron once more. It puts no load on
the node and no mark: work may run there already. Called by `replacing.py`.
"""

from datetime import timedelta

from workflows.contracts.kube import READ_NODE, Owner, Reading
from workflows.contracts.machines import RECORD_BASELINE, BaselineRequest
from workflows.contracts.node_tasks import DIAGNOSE, INVENTORY, NodeTaskRequest, TaskAnswer
from workflows.diagnosing import judge_diagnosis
from workflows.episode import Episode
from workflows.model.node_task import IDLE_LEVEL, Result, TaskKind
from workflows.model.remediation.gate import Baseline, Judgement, Verdict, judge_conditions
from workflows.model.remediation.replacement import GPU_RESOURCE, Successor
from workflows.runtime import Runtime

EXAMINE_AGAIN = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds between two looks at a newcomer of which it cannot be told yet."""


async def admit(run: Runtime, episode: Episode, successor: Successor) -> Judgement:
    """Passed, failed, or unknown still at the gate's deadline.

    Raises:
        NodeGone: the newcomer has vanished.
    """
    begun, looks = run.now(), 0
    limit = timedelta(seconds=episode.policy.gate.timeout_s)
    while True:
        waited_s = (run.now() - begun).total_seconds()
        judged = await examine(run, episode, successor, waited_s)
        left = begun + limit - run.now()
        if judged.verdict is not Verdict.UNKNOWN or left <= timedelta():
            words = "; ".join(judged.reasons[:4])
            run.inbox.tell(run.now(), f"Node {successor.node.name} {judged.verdict}: {words}")
            return judged
        pace = timedelta(seconds=EXAMINE_AGAIN[min(looks, len(EXAMINE_AGAIN) - 1)])
        await run.wait(lambda _: False, min(left, pace))
        looks += 1


async def examine(
    run: Runtime, episode: Episode, successor: Successor, waited_s: float
) -> Judgement:
    """One look; what takes minutes is only asked for if all before it was good."""
    owner = Owner(successor.node, episode.id)
    reading = await run.step(READ_NODE, owner)
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
    judged = judge_count(episode, reading, counted, expected)
    if judged.verdict is not Verdict.PASSED:
        return judged
    judged = await diagnose(run, episode, owner, reading, expected)
    if judged.verdict is Verdict.PASSED:
        await record_baseline(run, episode, owner, reading, counted)
    return judged


def expected_of(episode: Episode, successor: Successor) -> int:
    """What the pool expects, or what its claim promises; 0 = nobody says."""
    pool = episode.pool_policy
    return (pool.expected_gpus if pool else None) or successor.gpus


def judge_count(
    episode: Episode, reading: Reading, counted: TaskAnswer, expected: int
) -> Judgement:
    """As many as expected, in this boot, and none of those that were given away."""
    if counted.result is not Result.DONE:
        return Judgement(Verdict.UNKNOWN, (f"inventory: {counted.detail}",))
    if not counted.boot_id or counted.boot_id != reading.node.boot_id:
        return Judgement(Verdict.UNKNOWN, ("the inventory was taken in another boot",))
    baseline = episode.machine.baseline if episode.machine else None
    back = sorted(set(counted.gpus) & set(baseline.gpus if baseline else ()))
    if back:
        return Judgement(
            Verdict.FAILED, (f"the same machine came back: it has GPU {back[0]} of the old one",)
        )
    found = len(set(counted.gpus))
    if found != expected:
        return Judgement(Verdict.FAILED, (f"it counts {found} GPUs of {expected}",))
    return Judgement(Verdict.PASSED)


async def diagnose(
    run: Runtime, episode: Episode, owner: Owner, reading: Reading, expected: int
) -> Judgement:
    """DCGM's diagnostic at the level that puts no load on the GPUs."""
    policy = episode.policy
    limit_s = policy.gate.diagnose_limits_s[IDLE_LEVEL - 1]
    asked = NodeTaskRequest(
        owner=owner,
        kind=TaskKind.DIAGNOSE,
        step=f"admit-{run.now():%H%M%S%f}",
        deadline_s=limit_s + policy.timing.node_task_deadline_s,
        expected_boot_id=reading.node.boot_id,
        level=IDLE_LEVEL,
        expected_gpus=expected,
        limit_s=limit_s,
    )
    return judge_diagnosis(await run.step(DIAGNOSE, asked), reading.node.boot_id)


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
    """What a machine had when it was found well is what it must have from now on."""
    node = reading.node
    done = await run.step(
        RECORD_BASELINE,
        BaselineRequest(
            owner=owner,
            machine_id=reading.machine.machine_id,
            pool=episode.pool,
            provider_id=node.provider_id,
            baseline=Baseline(counted.gpus, tuple(sorted(node.gpus.items())), run.now()),
            model=counted.model,
            boot_id=counted.boot_id,
        ),
    )
    if done.refused:
        run.inbox.tell(run.now(), f"no baseline of Node {node.name}: {done.refused}")
