"""THE RUNBOOK: what a good on-call engineer does with a sick node, top to bottom.

Owns the order of things: suspect, quarantine, slot, drain, repair, gate, give back, watch; and
what happens instead when a person or another healer steps in. Knows no Temporal and no asyncio:
everything outside is reached through the Runtime. The steps named here are contracts; each is
carried out by the file in `activities/` that DESIGN.md's table names.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from workflows.admitting import admit, examine_again
from workflows.contracts.kube import (
    DRAIN,
    GIVE_BACK,
    QUARANTINE,
    Drained,
    DrainRequest,
    GiveBackRequest,
    QuarantineRequest,
    Reading,
)
from workflows.contracts.messages import Closing, Command, Opening
from workflows.diagnosing import ask_the_kernel
from workflows.episode import HARD, Episode
from workflows.inbox import Inbox
from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import RuleMatch, match_rules
from workflows.model.policy import DrainWay, Rung
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Judgement, Verdict
from workflows.model.remediation.ladder import next_rung
from workflows.model.remediation.marks import Quarantine
from workflows.model.remediation.phase import Outcome, Phase
from workflows.people import (
    blockers,
    clear_out,
    has_more,
    heed,
    hold,
    is_undone,
    make_way,
    overrule,
    renew,
    reopen,
    stand_aside,
    wait_for_a_person,
    why_held,
)
from workflows.places import release_all, take_place, take_slot, turn_back
from workflows.proving import (
    HEARSAY,
    doubt_old_mark,
    gate,
    hear,
    judge_unseen_boot,
    look,
    prove_and_judge,
    reboot,
)
from workflows.replacing import hand_over, replace_machine, see_through, survey_claim
from workflows.runtime import (
    Interrupted,
    NodeGone,
    NotOwner,
    OtherHealer,
    Overruled,
    Runtime,
    StepFailed,
    Until,
)
from workflows.telling import publish, publish_record
from workflows.validating import validate

MAX_LAPS = 500
"""Turns of the runbook in one run (interruptions, relapses); past it a person must look."""
REOPENED = (Outcome.DISMISSED, Outcome.RETURNED, Outcome.YIELDED)
"""Outcomes after which a report that came at the last moment is a new lap of the same run."""
DRAIN_WAYS = {
    DrainWay.NONE: (),
    DrainWay.NOW: (DrainWay.NOW,),
    DrainWay.FINISH_WORK: (DrainWay.FINISH_WORK, DrainWay.NOW),
}
"""The drains that a way consists of, in order; they share its deadline."""


async def remediate(run: Runtime, opening: Opening) -> Closing:
    """One episode, from its first report to its outcome."""
    episode = Episode(opening, opening.episode, pool=opening.pool, recover=opening.recover)
    episode.order = opening.validation
    if opening.operator_reason or opening.validation is not None:
        episode.fault = Fault.OPERATOR
    for _ in range(MAX_LAPS):
        try:
            outcome = await live(run, episode)
        except Interrupted as interruption:
            heed(run, episode, interruption)
            continue
        except Overruled as fact:
            overrule(run, episode, str(fact))
            continue
        except (StepFailed, OtherHealer) as fact:
            episode.stop(fact, is_healer=isinstance(fact, OtherHealer))
            continue
        except NodeGone as fact:
            outcome, episode.detail = Outcome.VANISHED, str(fact)
        except NotOwner as fact:
            outcome, episode.detail = Outcome.YIELDED, str(fact)
        if outcome is None:
            continue
        closing = await close(run, episode, outcome)
        if outcome not in REOPENED or not await has_more(run, episode):
            return closing  # no await since the look into the inbox: nothing can be lost
        reopen(run, episode)
    episode.detail = f"went round {MAX_LAPS} times; look at the story, then retire or resume"
    return await close(run, episode, Outcome.YIELDED)


async def live(run: Runtime, episode: Episode) -> Outcome | None:
    """One pass down the runbook; None = the world has changed, start from the top."""
    if episode.is_interim:
        return await settle(run, episode)
    hear(run, episode)
    reading = await look(run, episode)
    undone = is_undone(episode, reading)
    # A cordon without our mark has no owner: people are told, whatever the order was.
    is_left = undone and reading.marker is None and reading.node.unschedulable
    if episode.order is not None and not episode.retiring and not is_left:
        return await validate(run, episode, episode.order, is_undone=undone)
    if undone:
        return await stand_aside(run, episode)
    if episode.retiring:
        return await retire(run, episode, reading)
    if episode.wants_admission:
        return await admit(run, episode, reading)
    if not episode.owns(reading.marker):
        outcome = await enter(run, episode, reading)
        if outcome is not None or episode.overruled:
            return outcome
    elif not episode.is_opened:
        await doubt_old_mark(run, episode)
    episode.is_opened = True
    await enter_quarantined(run, episode)
    return await heal(run, episode)


async def enter(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """Suspected, then out of service; None = it is, or a person has overruled it."""
    outcome = await suspect(run, episode, reading)
    if episode.overruled:
        return None
    return outcome or await quarantine(run, episode)


async def settle(run: Runtime, episode: Episode) -> Outcome | None:
    """What comes before any other look at the node: a person, a machine on its way out, a healer."""
    if episode.stuck:
        return await wait_for_a_person(run, episode)
    if episode.leaving is not None:
        return await see_through(run, episode)
    return await make_way(run, episode)


# ---------------------------------------------------------------- suspect


async def suspect(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """Is it still there, and does it last? Timed from our own first sight of it."""
    if episode.recover and episode.marker is None:
        return episode.end(Outcome.DISMISSED, "the mark that the sweep saw is gone")
    if episode.recover or episode.is_refused:
        return None
    if reading.machine.closed_outcome:
        renew(run, episode)  # a fault that is there now is another episode than the closed one
    if not episode.pool:
        return episode.end(Outcome.DISMISSED, "the node is in no pool of the policy")
    matches = still_matching(run, episode, reading)
    if not matches:
        return episode.dismiss("no rule matches any more")
    while not matches[0].immediate:
        match = matches[0]
        blame(run, episode, match)
        debounce = timedelta(seconds=match.debounce_s)
        await publish(run, episode, f"{match.text}: must last {debounce}", "debounce")
        await run.wait(has_cleared(match), debounce)
        reading = await look(run, episode)
        if episode.owns(reading.marker):
            return None
        matches = still_matching(run, episode, reading)
        if not matches:
            return episode.dismiss("it recovered by itself before any quarantine")
        if match.fault in {lasting.fault for lasting in matches}:
            break  # else another fault is left, which has not lasted: it waits its own time
    blame(run, episode, matches[0])
    return None


def still_matching(run: Runtime, episode: Episode, reading: Reading) -> tuple[RuleMatch, ...]:
    """What matches and no person undid; if all that is left was undone in this run, it stands aside."""
    matches = match_rules(reading.node, episode.policy, run.now())
    standing = tuple(match for match in matches if not episode.is_undone(match))
    if matches and not standing and episode.undone:
        episode.overruled = episode.undone[-1]
    return standing


def blame(run: Runtime, episode: Episode, match: RuleMatch) -> None:
    """The episode is about this match; only a worse one interrupts it from now on."""
    episode.blame(match)
    run.inbox.fault = match.fault


def has_cleared(match: RuleMatch) -> Callable[[Inbox], bool]:
    """True of an inbox if the condition was seen with another status than the one that matched."""

    def is_seen(inbox: Inbox) -> bool:
        status = inbox.facts.conditions.get(match.condition, "") if inbox.facts else ""
        return status not in ("", match.status) and match.status != "Stale"

    return is_seen


# ---------------------------------------------------------------- quarantine, slot


async def quarantine(run: Runtime, episode: Episode) -> Outcome | None:
    """The entry patch, after a place in the confirmed budget; yields to another healer."""
    is_asked_for = bool(episode.retiring) or episode.recover or episode.is_refused
    kind = Quarantine.OPERATOR if is_asked_for else Quarantine.CONFIRMED
    replaced = episode.marker.episode if episode.marker and is_asked_for else ""
    done = None
    while done is None or done.refused:
        epoch = "" if is_asked_for else await take_place(run, episode, Budget.QUARANTINE)
        request = QuarantineRequest(
            owner=episode.owner,
            marker=episode.new_marker(run.now(), kind),
            adopt=tuple(run.inbox.episodes),
            replace=replaced,
            epoch=epoch,
        )
        try:
            done = await run.step(QUARANTINE, request)
        except NotOwner:
            if not await run.wait(has_more_ids_than(request.adopt), HEARSAY):
                raise
            continue  # watch was quicker: its marker is ours
        if done.yielded_to:
            return episode.end(Outcome.YIELDED, f"left to another healer: {done.yielded_to}")
        if done.refused:
            await turn_back(run, episode, Budget.QUARANTINE, f"quarantine refused: {done.refused}")
    if done.marker is not None:
        episode.marker, episode.id = done.marker, done.marker.episode
    run.inbox.expect(episode.id, done.resource_version)
    return None


def has_more_ids_than(known: tuple[str, ...]) -> Until:
    """Watch has reported an id that was not known when the request was made."""
    return lambda inbox: len(inbox.episodes) > len(known)


async def enter_quarantined(run: Runtime, episode: Episode) -> None:
    """The node takes no new work; said once, and again when its fault has become a worse one."""
    is_new = episode.phase in (Phase.SUSPECT, Phase.PROBATION)
    if is_new:
        episode.enter(Phase.QUARANTINED, run.now())
    if is_new or episode.is_stale:
        episode.is_stale = False
        text = episode.match.text if episode.match else episode.detail or "marked before"
        await publish(run, episode, f"{episode.fault}: {text}", "take a slot")


# ---------------------------------------------------------------- drain, repair


async def heal(run: Runtime, episode: Episode) -> Outcome | None:
    """The ladder: a rung, its proof, the gate; then the next rung, give back, or hold."""
    verdict: Judgement | Outcome | None = await before_repair(run, episode)
    while True:
        if isinstance(verdict, Outcome):
            return verdict
        rung = next_rung(episode.ladder, episode.tried)
        if verdict is not None and verdict.verdict is Verdict.PASSED:
            if not run.inbox.fresh:
                return await give_back(run, episode)
            verdict = await gate(run, episode)  # reported while the gate was passed
            continue
        if rung is not None and may_repair(verdict):
            verdict = await repair(run, episode, rung)
            continue
        command = await hold(run, episode, why_held(verdict), rung)
        if command is Command.RESUME and episode.is_unproven:
            await examine_again(run, episode)
            return None
        if command is Command.RESUME:
            verdict = await gate(run, episode)
        elif rung is not None:
            episode.is_approved = True
            verdict = await repair(run, episode, rung)


async def before_repair(run: Runtime, episode: Episode) -> Judgement | None:
    """None = repair. A class that waits, or a node found well, is judged at the gate first.

    Where a diagnostic gave no answer, the kernel log is asked first which class the fault is.
    """
    if episode.pending is not None:
        return await prove_and_judge(run, episode)
    if episode.recover:
        return mark_unknown(await gate(run, episode))
    if episode.fault is Fault.DIAGNOSTIC_UNKNOWN:
        unread = await ask_the_kernel(run, episode)
        if unread is not None:
            return unread
    if not episode.ladder:
        patience = timedelta(seconds=episode.treatment.recovery_wait_s)
        return await gate(run, episode, patience)
    if episode.tried or episode.fault in HARD or episode.is_refused:
        return None
    reading = await look(run, episode)
    if match_rules(reading.node, episode.policy, run.now()):
        return None
    judged = await gate(run, episode)
    return judged if judged.verdict is not Verdict.FAILED else None


def mark_unknown(judged: Judgement) -> Judgement:
    """For an episode that may only diagnose: a failed gate repairs nothing, it is held."""
    if judged.verdict is Verdict.FAILED:
        return Judgement(Verdict.UNKNOWN, judged.reasons)
    return judged


def may_repair(verdict: Judgement | None) -> bool:
    """A rung follows at once at the start, or after a gate that said no (never on unknown)."""
    return verdict is None or verdict.verdict is Verdict.FAILED


async def repair(run: Runtime, episode: Episode, rung: Rung) -> Judgement | Outcome:
    """Slot, drain, one rung, its proof, the gate; a replaced machine ends the episode."""
    await take_slot(run, episode)
    await survey_claim(run, episode)
    if not episode.drained:
        blocked = await drain(run, episode)
        if blocked is not None:
            return blocked
        await survey_claim(run, episode)
    if rung is Rung.REPLACE:
        boot_id = episode.claims.boot_id if episode.claims else ""
        return await judge_unseen_boot(run, episode, boot_id) or await replace_machine(run, episode)
    if rung is Rung.REBOOT:
        episode.is_approved = False  # a word for a reboot is none for what may follow it
        refused = await reboot(run, episode)
        if refused is not None:
            return refused
    return await prove_and_judge(run, episode)


async def drain(run: Runtime, episode: Episode) -> Judgement | None:
    """By the class's way; None = drained, else what stands in the way."""
    treatment = episode.treatment
    done = Drained(done=True, evicted=0, remaining=0)
    ways = DRAIN_WAYS[treatment.drain]
    for way in ways:
        deadline = treatment.drain_deadline_s / len(ways)
        done = await run.step(DRAIN, DrainRequest(episode.owner, way, deadline))
        if done.done:
            break
    if not done.done:
        return Judgement(Verdict.UNKNOWN, blockers(done))
    episode.drained = True
    episode.actions.append(f"drain: {done.evicted} pods evicted")
    episode.enter(Phase.DRAINED, run.now())
    await publish(run, episode, f"{done.evicted} pods evicted", "repair")
    return None


# ---------------------------------------------------------------- gate, give back, probation


async def give_back(run: Runtime, episode: Episode) -> Outcome | None:
    """Everything of ours comes off; then the run stays and watches. None = it relapsed."""
    episode.enter(Phase.VALIDATED, run.now())
    await publish(run, episode, "the gate passed", "give back")
    run.inbox.expectation = None
    await run.step(GIVE_BACK, GiveBackRequest(episode.owner))
    episode.marker = None
    episode.actions.append("give back")
    await release_all(run, episode)
    episode.enter(Phase.PROBATION, run.now())
    watching = timedelta(seconds=episode.policy.timing.probation_s)
    await publish(run, episode, f"back in service, watched for {watching}", "probation")
    relapsed = await run.wait(lambda inbox: bool(inbox.fresh), watching)
    if not relapsed:
        episode.detail = "passed its gate and stayed well"
        return Outcome.RETURNED
    reopen(run, episode)
    return None


# ---------------------------------------------------------------- people


async def retire(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """A person wants the node out: drained, then replaced, or handed over with its cordon."""
    run.inbox.may_worsen = False
    if not episode.owns(reading.marker):
        outcome = await quarantine(run, episode)
        if outcome is not None:
            return outcome
    if episode.is_stale:
        episode.is_stale = False
        await publish(run, episode, f"retired by {episode.retiring}", "take a slot")
    cleared = await clear_out(run, episode)
    episode.actions.append(f"drain: {cleared}")
    episode.enter(Phase.DRAINED, run.now())
    await publish(run, episode, cleared, "replace" if episode.on_karpenter else "hand over")
    answer = await replace_machine(run, episode)
    if isinstance(answer, Outcome):
        return answer
    why = "; ".join(answer.reasons)
    return await hand_over(run, episode, "operator", f"{episode.retiring} (not replaced: {why})")


# ---------------------------------------------------------------- closing


async def close(run: Runtime, episode: Episode, outcome: Outcome) -> Closing:
    """Frees what is left, writes the outcome, and ends. Interruptions no longer count."""
    run.inbox.heeding = False
    run.inbox.expectation = None
    await release_all(run, episode)
    episode.enter(Phase.CLOSED, run.now())
    record = replace(episode.record(run.now(), episode.detail), outcome=outcome.value)
    await publish_record(run, episode, record, outcome.value)
    return episode.closing(outcome)
