"""Proving: a reboot asked for once and proven, and the gate that a node must pass.

Owns the two waits that decide whether a repair worked; unknown is never taken for an answer.
Called by the runbook.
"""

from dataclasses import replace
from datetime import timedelta

from workflows.contracts.kube import (
    ASSERT_VETOES,
    AWAIT_REBOOT,
    OPEN_EPISODE,
    PROVE_REBOOT,
    READ_NODE,
    Reading,
    RebootWatch,
)
from workflows.contracts.node_tasks import INVENTORY, REBOOT, NodeTaskRequest
from workflows.diagnosing import ask_node, diagnose
from workflows.episode import Episode, attempt
from workflows.inbox import Expectation, Inbox, Interruption
from workflows.model.detection.fault import UNKNOWN_KIND, Fault, is_worse
from workflows.model.node_task import Result, TaskKind
from workflows.model.policy import Rung
from workflows.model.remediation.gate import (
    Inventory,
    Judgement,
    Verdict,
    judge_allocatable,
    judge_conditions,
    judge_inventory,
    worst,
)
from workflows.model.remediation.marks import Marker, other_healer
from workflows.model.remediation.phase import Phase
from workflows.model.remediation.reboot import BootRecord, Proof, RebootProof
from workflows.pacing import pause_after
from workflows.runtime import OtherHealer, Overruled, Runtime, Until
from workflows.telling import publish_record

HEARSAY = timedelta(seconds=10)
"""How long after its patch the report of watch may take: its outbox tries every 3 s."""
PROOF_AGAIN_S = 5.0
"""Seconds between two looks at a boot id that a signal announced and a read did not yet show."""
MAX_LATE = 20
"""Requests of a reboot that may come too late in one rung: as often as people may pause it."""


OLD_MARK = timedelta(seconds=30)
"""A mark older than this at a run's first look was not just written for it: Temporal was away, or
the mark comes out of a restored backup. As long as the sweep waits for a workflow."""
TOLD_AT_ONCE = timedelta(seconds=2)
"""Watch stamps a mark and its first report with the same instant; a mark that it tells later than
this was there before: it has just become the leader, or etcd was restored."""


def hear(run: Runtime, episode: Episode) -> None:
    """Takes what was reported; a worse fault than the episode's becomes the episode's.

    That a node cannot be reached while it does the reboot that we asked for says nothing of it.
    """
    for match in run.inbox.take_fresh():
        if episode.pending is not None and match.fault in UNKNOWN_KIND:
            continue
        is_same = episode.match is None and match.fault is episode.fault and not episode.is_learned
        if is_same or not episode.is_classed or is_worse(match.fault, episode.fault):
            episode.blame(match)
    if episode.is_classed:
        run.inbox.fault = episode.fault


async def look(run: Runtime, episode: Episode) -> Reading:
    """Reads the world; the first time also the policy, which then stays as it is.

    A worse finding is left to interrupt the step: what runs now was chosen for the lesser fault.
    """
    if run.inbox.interruption() is not Interruption.WORSE:
        hear(run, episode)
    if not episode.phases:
        opened = await run.step(OPEN_EPISODE, episode.owner)
        episode.policy, episode.pool = opened.policy, opened.pool
        episode.pool_size = opened.pool_size
        run.overrides = opened.policy.steps
        reading = opened.reading
        episode.enter(Phase.SUSPECT, run.now())
    else:
        reading = await run.step(READ_NODE, episode.owner)
    await hear_of(run, episode, reading.marker)
    episode.read(reading)
    wanted = run.inbox.expectation
    if wanted and not _stands(reading, wanted):
        raise Overruled("somebody removed the marker or the cordon")
    adopt(run, episode, reading)
    healer = other_healer(reading.node)
    if healer and episode.on_karpenter and episode.owns(reading.marker):
        raise OtherHealer(healer)
    return reading


async def hear_of(run: Runtime, episode: Episode, marker: Marker | None) -> None:
    """A marker with an unknown id: watch writes first and then says so, so its word may come."""
    uid = episode.opening.node.uid
    if marker is None or marker.handed_over or marker.node_uid != uid or episode.recover:
        return
    await run.wait(lambda inbox: marker.episode in inbox.episodes, HEARSAY)


def adopt(run: Runtime, episode: Episode, reading: Reading) -> None:
    """A marker that watch wrote for this run makes its id ours; one of a dead run, its fault."""
    marker = reading.marker
    if marker is None or marker.handed_over or marker.node_uid != episode.opening.node.uid:
        return
    if marker.episode in run.inbox.episodes:
        episode.id = marker.episode
        if reading.node.unschedulable:  # else there is no quarantine that could be expected
            run.inbox.expect(episode.id, reading.node.resource_version)
    else:
        episode.recover = True
    if episode.match is None and not episode.is_learned and marker.fault in set(Fault):
        episode.fault, episode.rule = Fault(marker.fault), marker.rule
        if not episode.recover and episode.fault is not Fault.OPERATOR:
            # What is reported again under a known id is not new: the mark says what it is.
            episode.is_classed, run.inbox.fault = True, episode.fault


def _stands(reading: Reading, wanted: Expectation) -> bool:
    """Our quarantine is as we left it; a read that is newer than the signal sees it too."""
    marker = reading.marker
    is_ours = marker is not None and marker.episode == wanted.marker_episode
    return is_ours and reading.node.unschedulable


async def doubt_old_mark(run: Runtime, episode: Episode) -> None:
    """A run that finds an old mark asks the machine itself whether it has booted since.

    If it has, or cannot be asked, what the mark was put there for may be over: the episode then
    only diagnoses and gates. (The Node's boot id may be as old as the mark.)
    """
    marker = episode.marker
    if marker is None or not marker.boot_id or episode.recover:
        return
    told_at = run.inbox.told_at.get(marker.episode)
    was_told_at_once = told_at is not None and told_at - marker.since < TOLD_AT_ONCE
    if was_told_at_once and run.now() - marker.since < OLD_MARK:
        return
    asked = NodeTaskRequest(
        owner=episode.owner,
        kind=TaskKind.INVENTORY,
        step="old-mark",
        deadline_s=episode.policy.timing.node_task_deadline_s,
    )
    answer = await run.step(INVENTORY, asked)
    if answer.result is Result.DONE and answer.boot_id == marker.boot_id:
        return
    seen = f"is in boot {answer.boot_id}" if answer.boot_id else "cannot be asked"
    run.inbox.tell(
        run.now(), f"the mark is of boot {marker.boot_id}, the machine {seen}: only gate"
    )
    episode.recover = True


async def reboot(run: Runtime, episode: Episode, late: int = 0) -> Judgement | None:
    """Asks for one reboot of the boot that stands now; None = asked, to be proven.

    What waited for a person's pause or for a worker until it was too late (`late` times so far) is
    refused by everybody: the node is looked at and asked again. Whatever else it is refused for
    (pods are back, no program on the node can do it), nothing was done: it was no attempt, the
    reboot stays the next rung, and people are asked.
    """
    reading = await look(run, episode)
    node = reading.node
    if not node.boot_id:
        return Judgement(Verdict.UNKNOWN, ("the Node has no bootID: a reboot cannot be proven",))
    judged = await judge_unseen_boot(run, episode, node.boot_id)
    if judged is not None:
        return judged
    deadline = run.now() + timedelta(seconds=episode.policy.timing.node_task_deadline_s)
    before = BootRecord(node.uid, node.provider_id, node.machine_uuid, node.boot_id, run.now())
    request = NodeTaskRequest(
        owner=episode.owner,
        kind=TaskKind.REBOOT,
        step=f"reboot-{len(episode.tried)}-{run.now():%H%M%S%f}",
        deadline_s=episode.policy.timing.node_task_deadline_s,
        expected_boot_id=node.boot_id,
        not_after=deadline,
    )
    episode.tried.append(Rung.REBOOT)
    episode.pending = before
    episode.actions.append("reboot")
    answer = await run.step(REBOOT, request)
    if answer.result is not Result.REFUSED:
        return None
    episode.pending = None
    run.inbox.tell(run.now(), f"the reboot was refused on the node: {answer.detail}")
    if answer.boot_id and answer.boot_id != node.boot_id:
        return await gate(run, episode)
    episode.tried.pop()
    episode.actions.pop()
    if run.now() >= deadline and late < MAX_LATE:
        return await reboot(run, episode, late + 1)
    episode.drained = False  # pods may have come back, and whoever looks at it takes their time
    return Judgement(Verdict.UNKNOWN, (f"reboot refused: {answer.detail}",))


async def judge_unseen_boot(run: Runtime, episode: Episode, boot_id: str) -> Judgement | None:
    """The gate's answer if somebody has rebooted the node since it was marked; None = nobody has.

    What was found was found in another boot: their reboot may have been the repair.
    """
    match, marker = episode.match, episode.marker
    known = episode.boot_id or (match.boot_id if match else marker.boot_id if marker else "")
    if not known or boot_id in ("", known):
        return None
    episode.boot_id = boot_id
    run.inbox.tell(run.now(), f"somebody has rebooted it: it is in boot {boot_id}")
    await assert_marks(run, episode)
    return await gate(run, episode)


async def prove_and_judge(run: Runtime, episode: Episode) -> Judgement:
    """Waits for the proof of the pending reboot, then judges the node at the gate."""
    before = episode.pending
    if before is None:
        return await gate(run, episode)
    proof = await prove_reboot(run, episode, before)
    episode.pending = None
    if proof.proof is not Proof.DONE:
        return Judgement(Verdict.FAILED, (f"the reboot is {proof.proof.value}: {proof.detail}",))
    episode.boot_id = proof.boot_id
    episode.enter(Phase.REBOOTED, run.now())
    record = episode.record(run.now(), proof.detail)
    done = attempt(Rung.REBOOT, before.at, proof.proof, before.boot_id, proof.boot_id)
    await publish_record(run, episode, replace(record, attempt=done), "gate")
    await assert_marks(run, episode)
    return await gate(run, episode)


async def assert_marks(run: Runtime, episode: Episode) -> None:
    """After a boot Karpenter's vetoes stand again: its reboots write Nodes without a lock."""
    if episode.on_karpenter:
        await run.step(ASSERT_VETOES, episode.owner)


async def prove_reboot(run: Runtime, episode: Episode, before: BootRecord) -> RebootProof:
    """Until it is proven or its deadline has passed; the signals of watch end the wait at once."""
    watch = RebootWatch(episode.owner, before)
    deadline = before.at + timedelta(seconds=episode.policy.timing.boot_deadline_s)
    while True:
        left = deadline - run.now()
        proof = await run.wait_for_answer(
            AWAIT_REBOOT, watch, lambda inbox: has_booted(inbox, before), max(left, timedelta())
        )
        if proof is None:  # a signal came first, or the time is over
            proof = await run.step(PROVE_REBOOT, watch)
        if proof.proof is Proof.DONE or run.now() >= deadline:
            return proof
        news = run.inbox.news
        await run.wait(has_news_since(news), min(left, timedelta(seconds=PROOF_AGAIN_S)))


def has_news_since(news: int) -> Until:
    """Something was signalled after the inbox had counted `news`."""
    return lambda inbox: inbox.news != news


def has_booted(inbox: Inbox, before: BootRecord) -> bool:
    """True if watch has seen the node Ready in another boot."""
    facts = inbox.facts
    return facts is not None and facts.ready and facts.boot_id not in ("", before.boot_id)


async def gate(run: Runtime, episode: Episode, patience: timedelta | None = None) -> Judgement:
    """Passed, failed or unknown; unknown is asked again until the deadline.

    With `patience` a failed answer too is asked again until then (a node that may recover).
    """
    begun = run.now()
    limit = patience or timedelta(seconds=episode.policy.gate.timeout_s)
    looks, episode.validation = 0, None
    while True:
        news = run.inbox.news
        waited_s = (run.now() - begun).total_seconds()
        judged = await judge(run, episode, waited_s, is_first=looks == 0)
        settled = Verdict.PASSED if patience else None
        is_final = judged.verdict is settled or (
            patience is None and judged.verdict is not Verdict.UNKNOWN
        )
        left = begun + limit - run.now()
        if is_final or left <= timedelta():
            why = "; ".join(judged.reasons[:4])
            run.inbox.tell(run.now(), f"gate {judged.verdict}" + (f": {why}" if why else ""))
            episode.note_gate(run.now(), judged)
            return judged
        await run.wait(has_news_since(news), min(left, pause_after(looks)))
        looks += 1


async def judge(run: Runtime, episode: Episode, waited_s: float, *, is_first: bool) -> Judgement:
    """One look: conditions, then the count on the node itself, then its diagnosis.

    Each is only asked for if all before it was good: a diagnosis takes minutes.
    """
    reading = await look(run, episode)
    node, policy = reading.node, episode.policy
    conditions = judge_conditions(node, policy, run.now())
    if not is_passed(conditions):
        return conditions
    baseline = reading.machine.baseline
    if baseline is None:
        return judge_inventory(None, None, node.boot_id)
    allocatable = judge_allocatable(node, baseline, waited_s, policy.gate.settle_s)
    if allocatable.verdict is Verdict.UNKNOWN and is_first:
        return allocatable  # the kubelet has just come back: its devices are announced in a moment
    count = NodeTaskRequest(
        owner=episode.owner,
        kind=TaskKind.INVENTORY,
        step=f"gate-{len(episode.tried)}-{run.now():%H%M%S%f}",
        deadline_s=policy.timing.node_task_deadline_s,
        needs_idle=episode.order is not None,
        gives_way=episode.order is not None,
    )
    answer = await ask_node(run, INVENTORY, count)
    if answer.result is not Result.DONE:
        return Judgement(Verdict.UNKNOWN, (f"inventory: {answer.detail}",))
    found = Inventory(answer.gpus, answer.model, answer.boot_id)
    counted = worst(judge_inventory(found, baseline, node.boot_id), allocatable)
    return await diagnose(run, episode, reading) if is_passed(counted) else counted


def is_passed(judged: Judgement) -> bool:
    """True if nothing speaks against the node."""
    return judged.verdict is Verdict.PASSED
