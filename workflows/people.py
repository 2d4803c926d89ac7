"""People in an episode: held, overruled, interrupted, and opened again.

Owns what the runbook does when the next word is a person's (or watch's): hold and ask, clear the
node that they retire, stand aside after an overruling, and go on under a new id. Called by the
runbook; nothing here repairs.
"""

from dataclasses import replace

from workflows.asking import is_answered, question
from workflows.contracts.kube import (
    DRAIN,
    GIVE_BACK,
    READ_NODE,
    Drained,
    DrainRequest,
    GiveBackRequest,
    Reading,
)
from workflows.contracts.messages import Command
from workflows.episode import Episode
from workflows.inbox import Inbox, Interruption
from workflows.model.detection.fault import Fault
from workflows.model.detection.finding import printable
from workflows.model.policy import DrainWay, Rung
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.gate import Judgement, Verdict
from workflows.model.remediation.marks import is_marked
from workflows.model.remediation.overrule import Overrule
from workflows.model.remediation.phase import Outcome, Phase
from workflows.model.remediation.replacement import is_by_hand
from workflows.places import free_slot, release_all, take_slot
from workflows.proving import hear
from workflows.replacing import has_no_claim, survey_claim
from workflows.runtime import Interrupted, NodeGone, Runtime, StepFailed
from workflows.telling import publish, publish_record

MAX_REASON = 200
"""Of a person's reason, in characters: it is written into the marker, which is bounded."""


async def hold(
    run: Runtime, episode: Episode, why: str, rung: Rung | None, approve: str = ""
) -> Command:
    """Keeps the quarantine, frees the slot, says what it waits for, reminds; a person answers.

    `approve` = what an approval does where no rung is next; "" = nothing, and it is not taken.
    """
    if episode.owns(episode.marker):
        await free_slot(run, episode)
    if rung is Rung.REPLACE and has_no_claim(episode):
        rung = None
    taken = (Command.RESUME, Command.APPROVE) if rung or approve else (Command.RESUME,)
    with question(run, episode) as asked:
        words = answers(episode, rung, approve)
        command = await asked.answer(why, words, is_answered, lambda word: word in taken)
        assert command is not None  # only answers end the wait
        await publish(run, episode, f"{command} by a person", "go on")
        return command


def answers(episode: Episode, rung: Rung | None, approve: str) -> str:
    """What each answer to a hold does here."""
    resume = "the gate again, then what it calls for"
    if episode.retiring:
        resume = "drain again, then hand over"
    if rung is not None:
        approve = rung.value if episode.drained else f"drain again, then {rung.value}"
    offered = f"approve = {approve}; " if approve else ""  # else it would do nothing
    return f"resume = {resume}; {offered}deny = stay held; retire = drain and hand over"


def why_held(verdict: Judgement | None) -> str:
    """One line for people: what stands between this node and its return."""
    if verdict is None:
        return "nothing more is allowed"
    why = "; ".join(verdict.reasons[:4])
    # Unknown is never said of the node alone: the reasons name what could not be told.
    return why if verdict.verdict is Verdict.UNKNOWN else f"{verdict.verdict}: {why}"


async def clear_out(run: Runtime, episode: Episode) -> str:
    """A node that is retired is drained, or a person says that it goes as it is; what came of it.

    A pod on a dead kubelet terminates for ever, and so would the drain.
    """
    deadline = episode.policy.faults[Fault.OPERATOR].drain_deadline_s
    by_hand = is_by_hand(episode.pool_policy, is_on_karpenter=episode.on_karpenter)
    while True:
        await take_slot(run, episode)
        await survey_claim(run, episode)
        done = await run.step(DRAIN, DrainRequest(episode.owner, DrainWay.NOW, deadline))
        if done.done:
            return f"{done.evicted} pods evicted"
        goes = "hand it over" if by_hand or has_no_claim(episode) else "give it away"
        approve = f"{goes} though these pods have not ended"
        command = await hold(run, episode, "; ".join(blockers(done)), None, approve)
        if command is Command.APPROVE:
            await take_slot(run, episode)  # the question has freed it
            await survey_claim(run, episode)
            return f"{done.evicted} pods evicted, {done.remaining} left on it as a person said"


def blockers(done: Drained) -> tuple[str, ...]:
    """Who stands in the way of a drain, one line each."""
    lines = tuple(f"not drained: {blocked}" for blocked in done.blocked[:8])
    return lines or (f"not drained: {done.remaining} pods are left on the node",)


def is_undone(episode: Episode, reading: Reading) -> bool:
    """True if a person took our quarantine off, wholly or but for the marker.

    A quarantine that stands by a fresh read was not undone: the signal that said so came out of a
    time that a restored etcd has taken back.
    """
    is_ours = episode.owns(reading.marker)
    if is_ours and reading.node.unschedulable:
        withdraw(episode)
    return episode.overruled is not None or (is_ours and not reading.node.unschedulable)


async def stand_aside(run: Runtime, episode: Episode) -> Outcome | None:
    """Overruled: nothing is done until a person resumes or retires.

    Or the node boots anew, or something is reported that the person did not see.
    """
    if episode.overruled is None:  # it was told already, and something new was reported since
        await take_leftover_off(run, episode)
        return None
    if episode.machine is not None and episode.machine.closed_outcome:
        return episode.end(Outcome.YIELDED, f"closed before as {episode.machine.closed_outcome}")
    await release_all(run, episode)
    boot, inbox = episode.overruled.boot_id, run.inbox
    with question(run, episode) as asked:
        record = episode.record(run.now(), f"overruled: {episode.detail}", held=True)
        asks = (
            f"{asked.text} resume = look again and go on; retire = drain and hand over; "
            "no answer = it stays as you left it until the next boot"
        )
        overruled = replace(record, overruled=episode.overruled)
        await publish_record(run, episode, overruled, "held", asks)
        if episode.owns(episode.marker):
            await take_leftover_off(run, episode)
        await run.wait(
            lambda box: bool(box.answers or box.fresh) or has_another_boot(box, boot), None
        )
    command = inbox.take_answer()
    if command in (Command.DENY, Command.APPROVE):
        return None
    if command is None and not inbox.fresh:
        return episode.end(Outcome.YIELDED, "a person took over; the node has booted since")
    again = replace(episode.record(run.now(), "looked at again"), resumed=command is not None)
    if command is not None:
        withdraw(episode)
    reopen(run, episode)
    episode.phase = Phase.SUSPECT
    await publish_record(run, episode, again, "look again")
    return None


async def take_leftover_off(run: Runtime, episode: Episode) -> None:
    """Our marker without a cordon says "out of service" of a node in service: off with it."""
    run.inbox.expectation = None
    await run.step(GIVE_BACK, GiveBackRequest(episode.owner))
    episode.marker = None


async def make_way(run: Runtime, episode: Episode) -> Outcome:
    """Another healer has begun on the node: nothing of ours stays there."""
    healer, episode.yielding = episode.yielding, ""
    await take_leftover_off(run, episode)
    return episode.end(Outcome.YIELDED, f"left to another healer: {healer}")


def has_another_boot(inbox: Inbox, boot: str) -> bool:
    """True if the node has booted since `boot`."""
    return inbox.facts is not None and bool(boot) and inbox.facts.boot_id not in ("", boot)


async def wait_for_a_person(run: Runtime, episode: Episode) -> Outcome | None:
    """A step cannot be carried out as asked: fail-stop, the node stays as it is."""
    why, episode.stuck = episode.stuck, ""
    run.inbox.tell(run.now(), f"stuck: {why}")
    await hold(run, episode, why, None)
    return None


def heed(run: Runtime, episode: Episode, interruption: Interrupted) -> None:
    """What an interruption changes; the next pass then starts by reading the world."""
    inbox = run.inbox
    if interruption.reason is Interruption.RETIRE and inbox.retire:
        by, why = printable(inbox.retire.by, 64), printable(inbox.retire.reason, MAX_REASON)
        episode.retiring = f"{by}: {why or 'no reason given'}"
        episode.overruled, inbox.retire = None, None
        episode.is_stale = True
    elif interruption.reason is Interruption.OVERRULED:
        overrule(run, episode, "somebody removed the marker or the cordon")
        inbox.facts = None  # as below
    elif interruption.reason is Interruption.GONE:
        inbox.facts = None  # the next read says whether it is true
    elif interruption.reason is Interruption.WORSE:
        if episode.recover:
            # Watch says what the mark is for: it is only old, if the machine agrees.
            episode.recover, episode.is_opened = False, False
        episode.overruled = None
        hear(run, episode)
        episode.is_stale = True


def overrule(run: Runtime, episode: Episode, why: str) -> None:
    """A person undid the quarantine: it stays undone, and the episode waits for them."""
    run.inbox.expectation = None
    match, facts = episode.match, run.inbox.facts
    boot = match.boot_id if match else (facts.boot_id if facts else "")
    episode.detail = why
    # What they saw on the node: the report, not what the kernel log has made of it since.
    fault, devices = (match.fault, match.devices) if match else (episode.fault, ())
    episode.overruled = Overrule(fault.value, devices, boot, run.now())
    episode.undone.append(episode.overruled)


def withdraw(episode: Episode) -> None:
    """The overruling did not happen, or a person has taken it back."""
    if episode.overruled is not None:
        episode.undone.clear()
    episode.overruled = None


def reopen(run: Runtime, episode: Episode) -> None:
    """A new report on a node that was given back: from the top, as an episode of its own id.

    What was tried stays tried: a relapse goes one rung up.
    """
    inbox = run.inbox
    inbox.tell(run.now(), "reported again")
    renew(run, episode)
    episode.match, episode.marker, episode.boot_id = None, None, ""
    episode.drained, episode.recover, episode.overruled = False, False, None
    episode.claims, episode.horizon, episode.is_approved = None, None, False
    episode.order, episode.doubted_level = None, 0
    episode.is_learned, episode.is_classed, episode.is_refused = False, False, False
    inbox.heeding = True
    inbox.fault = Fault.OPERATOR
    if episode.phase is Phase.CLOSED:
        episode.phase = Phase.SUSPECT


async def has_more(run: Runtime, episode: Episode) -> bool:
    """True if something came while the run was closing: then it lives on.

    A new node that was reported is looked at first: its taint may have come back after it was let
    in, or the report may be older than that. No await follows the last look into the inbox.
    """
    inbox = run.inbox
    while inbox.newcomer and not inbox.has_unheard():
        inbox.newcomer = False
        try:
            node = (await run.step(READ_NODE, episode.owner)).node
        except (NodeGone, StepFailed):
            break  # gone, or it cannot be told: the sweep looks for new nodes without a run
        if is_newcomer(node) and not is_marked(node):
            return True
    return inbox.has_unheard()


def renew(run: Runtime, episode: Episode) -> None:
    """Another id: the one that watch reported, or one made from the run's first."""
    inbox = run.inbox
    episode.laps += 1
    reported = inbox.report.episode if inbox.report else ""
    if not reported or reported == episode.id:
        reported = f"{episode.opening.episode}-{episode.laps}"
    if reported not in inbox.episodes:
        inbox.episodes.append(reported)
    episode.id = reported
