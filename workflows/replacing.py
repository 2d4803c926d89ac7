"""Replacing: the machine is given away through Karpenter, seen off, and another one admitted.

Owns the rung `replace`: whose NodeClaim the node is (and that nobody else acts on it), the one
deletion, the wait for its end with what blocks it, and the wait for the successor. Without a
NodeClaim the node is handed over to people. Called by the runbook; the newcomer is examined in
`succeeding.py`.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from workflows.asking import has_answer, is_answered, question
from workflows.contracts.karpenter import (
    AWAIT_CLAIM_GONE,
    DELETE_CLAIM,
    FIND_SUCCESSOR,
    LOOK_FOR_SUCCESSOR,
    READ_CLAIM_END,
    RESOLVE_CLAIM,
    ClaimWatch,
    DeleteClaimRequest,
    Succession,
    SuccessorRequest,
)
from workflows.contracts.kube import HAND_OVER, HandOverRequest
from workflows.contracts.messages import Command
from workflows.episode import Episode, Leaving, attempt
from workflows.model.detection.fault import UNKNOWN_KIND
from workflows.model.policy import Rung
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Judgement, Verdict
from workflows.model.remediation.phase import Outcome, Phase
from workflows.model.remediation.replacement import (
    Standing,
    Successor,
    is_by_hand,
    must_be_refilled,
    refusal_by_capacity,
)
from workflows.pacing import pause_after
from workflows.places import free_slot, release
from workflows.runtime import NodeGone, OtherHealer, Runtime
from workflows.succeeding import admit
from workflows.telling import publish, publish_record

LOOK_AGAIN_S = (30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds between two looks that are written down (the waiting step asks far more often); the last
one for ever: a machine may not come for weeks, and each look is history."""
SETTLE = timedelta(seconds=90)
"""In an elastic pool: how long after the machine's end nobody may be waiting for a node before it
counts as not needed. Owners of evicted pods make new ones within seconds."""
ELASTIC_PATIENCE = timedelta(minutes=15)
"""In an elastic pool: how long pods may wait (perhaps for another pool) and no claim be made.
Karpenter makes one within seconds of a pod that it can help."""
MAX_NEWCOMERS = 8
"""Successors that may vanish while they are examined, before people are asked."""


async def survey_claim(run: Runtime, episode: Episode) -> None:
    """Whose claim the node is now; before the first eviction also which claims there are.

    Asked again before each rung: our veto does not stop what Karpenter had begun.

    Raises:
        OtherHealer: somebody acts on the claim or the Node.
    """
    if not episode.on_karpenter:
        return
    found = await run.step(RESOLVE_CLAIM, episode.owner)
    if found.standing is Standing.ACTING:
        raise OtherHealer(found.detail)
    episode.claims = found
    if episode.horizon is None:
        episode.horizon = found.horizon


async def replace_machine(run: Runtime, episode: Episode) -> Judgement | Outcome:
    """The rung: an outcome, or (unknown) why the machine stays and a person must look."""
    pool = episode.pool_policy
    if episode.fault in UNKNOWN_KIND and not episode.retiring:
        return Judgement(Verdict.UNKNOWN, ("unknown health never replaces a machine",))
    if is_by_hand(pool, is_on_karpenter=episode.on_karpenter):
        if episode.retiring:
            return await hand_over(run, episode, "operator", episode.retiring)
        tried = ", ".join(episode.tried) or "nothing"
        why = f"{episode.fault}: to be replaced by hand; tried: {tried}"
        return await hand_over(run, episode, "external", why)
    found, horizon = episode.claims, episode.horizon
    if found is None or found.claim is None or horizon is None:
        detail = found.detail if found else "its NodeClaim is not known"
        return Judgement(Verdict.UNKNOWN, (f"not replaced: {detail}",))
    ending = refusal_by_capacity(pool, run.now())
    if ending and not episode.retiring and not episode.is_approved:
        return Judgement(Verdict.UNKNOWN, (f"not replaced, nothing would come: {ending}",))
    storm = refusal_by_losses(episode, found.lost_new)
    if storm:
        return Judgement(Verdict.UNKNOWN, (f"not replaced: {storm}",))
    done = await run.step(DELETE_CLAIM, DeleteClaimRequest(episode.owner, found.claim))
    if done.yielded_to:
        raise OtherHealer(done.yielded_to)
    refilled = must_be_refilled(pool, is_static=found.is_static)
    episode.leaving = Leaving(found.claim, found.node_pool, horizon, refilled, run.now())
    episode.tried.append(Rung.REPLACE)
    episode.actions.append("replace")
    return await see_through(run, episode)


def has_no_claim(episode: Episode) -> bool:
    """True if the machine is Karpenter's to replace, and it is not sure which NodeClaim it is.

    No word of a person's changes that: once it is sure, the gate leads to the rung by itself.
    """
    found = episode.claims
    by_hand = is_by_hand(episode.pool_policy, is_on_karpenter=episode.on_karpenter)
    return not by_hand and found is not None and found.claim is None


def refusal_by_losses(episode: Episode, lost_new: int) -> str:
    """Why one more newcomer is not given away; "" = it may be, or a person has said so."""
    pool = episode.pool_policy
    if pool is None or not episode.is_refused or episode.retiring or episode.is_approved:
        return ""
    most = pool.admission.max_replaced
    if lost_new < most:
        return ""
    return (
        f"{lost_new} new machines of pool {pool.name} were given away within a day before any was "
        f"admitted (admission.max_replaced {most}): look for what they have in common"
    )


async def hand_over(run: Runtime, episode: Episode, to: str, why: str) -> Outcome:
    """The quarantine stays, and the marker says who has the node now."""
    run.inbox.expectation = None
    await run.step(HAND_OVER, HandOverRequest(episode.owner, to, why))
    episode.actions.append("hand over")
    return episode.end(Outcome.RETIRED, f"handed over: {why}")


# ---------------------------------------------------------------- after the deletion


async def see_through(run: Runtime, episode: Episode) -> Outcome:
    """From the deletion to the successor. Nothing can take it back, so nothing interrupts it.

    A person's `retire` means here: close without a successor.
    """
    leaving = episode.leaving
    assert leaving is not None
    run.inbox.heeding, run.inbox.expectation = False, None
    await tell_attempt(run, episode, leaving, "unknown")
    await until_gone(run, episode, leaving)
    episode.marker = None
    await tell_attempt(run, episode, leaving, "done")
    for _ in range(MAX_NEWCOMERS):
        successor = await await_successor(run, episode, leaving)
        if successor is None:
            return Outcome.REPLACED
        try:
            return await receive(run, episode, successor)
        except NodeGone:
            run.inbox.tell(run.now(), f"Node {successor.node.name} vanished before it was admitted")
    return episode.end(Outcome.REPLACED, f"{MAX_NEWCOMERS} successors vanished one by one")


async def receive(run: Runtime, episode: Episode, successor: Successor) -> Outcome:
    """The newcomer is examined until it has passed, or a person closes.

    Raises:
        NodeGone: it has vanished, at the first examination or at one that a person asked for.
    """
    judged = await admit(run, episode, successor)
    while judged.verdict is not Verdict.PASSED:
        await give_up_slot(run, episode)
        reasons = "; ".join(judged.reasons[:4])
        why = f"Node {successor.node.name} came and is not admitted: {reasons}"
        command = await ask(run, episode, why)
        if command is not Command.RESUME:
            return episode.end(Outcome.REPLACED, f"{why}; closed by a person ({command})")
        judged = await admit(run, episode, successor)
    episode.enter(Phase.VALIDATED, run.now())
    await publish(run, episode, f"Node {successor.node.name} came and passed", "close")
    return episode.end(Outcome.REPLACED, f"replaced by Node {successor.node.name}")


async def tell_attempt(run: Runtime, episode: Episode, leaving: Leaving, result: str) -> None:
    """The attempt in the machine record; its result replaces what stood there."""
    marker = episode.marker
    done = attempt(Rung.REPLACE, leaving.at, result, marker.boot_id if marker else "")
    what = "is being deleted" if result == "unknown" else "and its Node are gone"
    record = episode.record(run.now(), f"NodeClaim {leaving.claim.name} {what}")
    await publish_record(run, episode, replace(record, attempt=done), "replace")


async def until_gone(run: Runtime, episode: Episode, leaving: Leaving) -> None:
    """Until Node and claim are gone; tells what blocks, and from the deadline on asks people."""
    watch = ClaimWatch(episode.owner, leaving.claim)
    deadline = leaving.at + timedelta(seconds=episode.policy.timing.removal_deadline_s)
    told, looks = "", 0
    while True:
        pace = pause_after(looks, LOOK_AGAIN_S)
        if run.now() < deadline:
            pace = min(pace, deadline - run.now())
        # A `retire` is kept for when the machine is gone.
        if await run.wait_for_answer(AWAIT_CLAIM_GONE, watch, is_answered, pace) is not None:
            return
        while run.inbox.answers:
            run.inbox.take_answer()
        end = await run.step(READ_CLAIM_END, watch)
        if end.gone:
            return
        is_late = run.now() >= deadline
        why = "; ".join(str(blocker) for blocker in end.blockers) or "Karpenter has not ended it"
        if is_late:
            await give_up_slot(run, episode)
        if (line := f"{is_late} {why}") != told:
            record = episode.record(run.now(), f"the deletion waits: {why}", held=is_late)
            await publish_record(run, episode, record, "replace", "resume = look again")
            told = line
        looks += 1


async def await_successor(run: Runtime, episode: Episode, leaving: Leaving) -> Successor | None:
    """The newcomer; None = none is needed, or a person closed it (the episode's detail says).

    One that is coming and is not Ready in time is told as held, without our slot: it may be the one
    that its own repair needs.
    """
    request = SuccessorRequest(episode.owner, leaving.node_pool, leaving.horizon)
    told, looks = ("", 0), 0
    is_coming: bool | None = None
    since = run.now()
    while True:
        found = await run.step(LOOK_FOR_SUCCESSOR, request)
        if found.successor is not None:
            return found.successor
        if found.is_coming is not is_coming:  # one that vanishes leaves time for another
            is_coming, since = found.is_coming, run.now()
        waited = run.now() - since
        if not is_needed(leaving, found, waited) and waited >= SETTLE:
            words = "Karpenter made no other" if found.waiting else "no pod needed another"
            episode.end(Outcome.REPLACED, f"the machine is gone; {words}")
            return None
        limit = timedelta(seconds=episode.policy.timing.boot_deadline_s)
        due = since + limit if is_coming else None
        calls = calls_for_people(run, episode, due)
        if (found.reason, calls) != told:
            told = (found.reason, calls)
            if calls:
                await tell_stuck(run, episode, found.reason)
            else:
                await tell_awaited(run, episode, found.reason)
        pace = pace_of(run, leaving, due, looks)
        answer = await run.wait_for_answer(FIND_SUCCESSOR, request, has_answer, pace)
        if answer is not None and answer.successor is not None:
            return answer.successor
        if run.inbox.retire is not None:
            episode.end(Outcome.REPLACED, "the machine is gone; closed by a person, none came")
            return None
        while run.inbox.answers:
            run.inbox.take_answer()
        looks += 1


def is_needed(leaving: Leaving, found: Succession, waited: timedelta) -> bool:
    """True if a successor must come, is coming, or may yet be made for the pods that wait."""
    is_wanted = bool(found.waiting) and waited < ELASTIC_PATIENCE
    return leaving.must_be_refilled or found.is_coming or is_wanted


def calls_for_people(run: Runtime, episode: Episode, due: datetime | None) -> int:
    """How often people should have been told by now: once when it is due, then each reminder."""
    if due is None or run.now() < due:
        return 0
    return 1 + (run.now() - due) // timedelta(seconds=episode.policy.timing.reminder_s)


def pace_of(run: Runtime, leaving: Leaving, due: datetime | None, looks: int) -> timedelta:
    """Until the next look; none later than `due`, and once people are told, no more in haste."""
    pace = pause_after(looks, LOOK_AGAIN_S)
    if due is not None and run.now() >= due:
        return pace
    if due is not None:
        pace = min(pace, due - run.now())
    return pace if leaving.must_be_refilled else min(pace, SETTLE)


async def tell_awaited(run: Runtime, episode: Episode, reason: str) -> None:
    """Nothing is wrong yet: why there is no successor so far."""
    await_capacity(run, episode)
    record = episode.record(run.now(), reason)
    await publish_record(run, episode, record, "await a successor", "retire = close")


async def tell_stuck(run: Runtime, episode: Episode, reason: str) -> None:
    """Held, without a slot: the newcomer does not get Ready, and people must look at it."""
    await_capacity(run, episode)
    await give_up_slot(run, episode)
    limit = timedelta(seconds=episode.policy.timing.boot_deadline_s)
    why = (
        f"the successor is not Ready within {limit}: {reason}; repair it, or delete its NodeClaim "
        "so that another is made (it goes on once one is Ready)"
    )
    record = episode.record(run.now(), why, held=True)
    asks = "resume = look again; retire = close"
    await publish_record(run, episode, record, "await a successor", asks)


def await_capacity(run: Runtime, episode: Episode) -> None:
    """The phase of a machine that is gone and has no successor yet."""
    if episode.phase is not Phase.AWAITING_CAPACITY:
        episode.enter(Phase.AWAITING_CAPACITY, run.now())


async def ask(run: Runtime, episode: Episode, why: str) -> Command:
    """Held for a newcomer that did not pass; the answer."""
    words = "resume = examine it again; approve = take it; deny = stay held; retire = close"

    def is_taken(command: Command | None) -> bool:
        is_answer = command in (Command.RESUME, Command.APPROVE)
        return is_answer or run.inbox.retire is not None

    with question(run, episode) as asked:
        command = await asked.answer(why, words, has_answer, is_taken)
    return command if run.inbox.retire is None and command else Command.RETIRE


async def give_up_slot(run: Runtime, episode: Episode) -> None:
    """Held: another node may be repaired meanwhile. The Node may go at any moment, and its note."""
    try:
        await free_slot(run, episode)
    except NodeGone:
        episode.marker = None
        await release(run, episode, Budget.DISRUPTION)
