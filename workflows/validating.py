"""Validating: an idle node is taken out, counted, diagnosed and given back, before a job meets it.

Owns the course of a validation inside the node's own run, so that there is one run and one owner
whatever happens meanwhile: a rule that matches, an answer that is bad, or one that is unknown,
makes it an ordinary episode on the spot. It evicts nothing, and makes way for a pod that could use
the node. Called by the runbook; the gate's questions are `proving.py`'s.
"""

from datetime import timedelta

from workflows.admitting import condemn, examine, is_asked_again
from workflows.contracts.fleet import READ_IDLENESS
from workflows.contracts.kube import GIVE_BACK, QUARANTINE, GiveBackRequest, QuarantineRequest
from workflows.contracts.machines import TAKEN_BACK, Validation
from workflows.contracts.messages import ValidationOrder
from workflows.diagnosing import GaveWay, hardware_in
from workflows.episode import Episode
from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import match_rules
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Judgement, Verdict, judge_conditions
from workflows.model.remediation.marks import Quarantine
from workflows.model.remediation.phase import Outcome, Phase
from workflows.places import release, try_place
from workflows.proving import has_news_since, judge, look
from workflows.runtime import Runtime
from workflows.telling import publish

RULE = "validation"
"""In the marker's place of a rule: no rule of the policy matched."""
AGAIN_S = 10.0
"""Between two looks while the node cannot tell: so long may a pod wait for it unseen."""


async def validate(
    run: Runtime, episode: Episode, order: ValidationOrder, *, is_undone: bool
) -> Outcome | None:
    """From the first look to the return; None = look again (as an ordinary episode, mostly).

    `is_undone` = a person took the cordon or the mark off.
    """
    if episode.match is not None:
        become_episode(run, episode, f"reported meanwhile: {episode.match.text}")
        return None
    if is_undone:
        return await leave_to_a_person(run, episode)
    run.inbox.fault = Fault.OPERATOR  # any fault that is reported is worse
    if not episode.owns(episode.marker):
        outcome = await enter(run, episode, order)
        if outcome is not None:
            return outcome
    try:
        judged = await prove_well(run, episode)
    except GaveWay as fact:
        return await give_back(run, episode, f"gave way to pod {fact}; not validated")
    if run.inbox.fresh:
        return None  # reported while the gate was asked: heard at the next look
    if judged.verdict is Verdict.PASSED:
        found = episode.validation.detail if episode.validation else ""
        episode.enter(Phase.VALIDATED, run.now())
        text = f"validated at level {order.level}: {found}"
        await publish(run, episode, text, "give back")
        return await give_back(run, episode, text)
    await hand_over(run, episode, judged)
    return None


# ---------------------------------------------------------------- out of service


async def enter(run: Runtime, episode: Episode, order: ValidationOrder) -> Outcome | None:
    """A place, the cordon; or the reason why the node is left alone, which is no fault of it."""
    why = await why_not_now(run, episode, order)
    if why:
        return episode.end(Outcome.DISMISSED, f"not validated: {why}")
    patience = timedelta(seconds=order.place_within_s)
    epoch = await try_place(run, episode, Budget.VALIDATION, patience)
    if not epoch:
        return episode.end(
            Outcome.DISMISSED,
            f"not validated: the budget of validations gave no place within {patience}",
        )
    why = (await run.step(READ_IDLENESS, episode.owner)).why_not  # the wait may have been long
    if why:
        return episode.end(Outcome.DISMISSED, f"not validated: {why}")
    marker = episode.new_marker(run.now(), Quarantine.VALIDATION, RULE)
    request = QuarantineRequest(episode.owner, marker, epoch=epoch)
    done = await run.step(QUARANTINE, request)
    if done.yielded_to:
        return episode.end(Outcome.YIELDED, f"left to another healer: {done.yielded_to}")
    if done.refused:
        return episode.end(Outcome.DISMISSED, f"not validated: {done.refused}")
    episode.marker, episode.is_opened = done.marker, True
    run.inbox.expect(episode.id, done.resource_version)
    episode.enter(Phase.QUARANTINED, run.now())
    await publish(run, episode, f"validation at level {order.level}", "diagnose")
    return None


async def why_not_now(run: Runtime, episode: Episode, order: ValidationOrder) -> str:
    """What keeps the node from being validated; "" = nothing does."""
    machine = episode.machine
    if machine is not None and machine.closed_outcome:
        return f"it was closed before as {machine.closed_outcome}"
    if run.now() > order.not_after:
        return f"the order was good until {order.not_after:%Y-%m-%d %H:%M:%S}"
    return (await run.step(READ_IDLENESS, episode.owner)).why_not


# ---------------------------------------------------------------- the answer


async def prove_well(run: Runtime, episode: Episode) -> Judgement:
    """The gate's questions, unknown asked again until the gate's deadline.

    Raises:
        GaveWay: a pod uses the node's GPUs, or waits for such a node.
    """
    begun, looks = run.now(), 0
    limit = timedelta(seconds=episode.policy.gate.timeout_s)
    episode.validation, episode.failures = None, ()
    while True:
        news = run.inbox.news
        work = (await run.step(READ_IDLENESS, episode.owner)).work
        if work and not episode.doubted_level:
            raise GaveWay(work)
        waited_s = (run.now() - begun).total_seconds()
        if episode.order is not None and episode.order.is_new:
            judged = await examine_new(run, episode)
        else:
            judged = await judge(run, episode, waited_s, is_first=looks == 0)
        if judged.verdict is Verdict.PASSED:
            judged = await confirm(run, episode)
        left = begun + limit - run.now()
        if judged.verdict is not Verdict.UNKNOWN or left <= timedelta():
            episode.note_gate(run.now(), judged)
            return judged
        await run.wait(has_news_since(news), min(left, timedelta(seconds=AGAIN_S)))
        looks += 1


async def examine_new(run: Runtime, episode: Episode) -> Judgement:
    """A machine that was never proven: as at its admission, and twice before it is condemned."""
    reading = await look(run, episode)
    judged = judge_conditions(reading.node, episode.policy, run.now())
    if judged.verdict is Verdict.PASSED:
        judged = await examine(run, episode, reading)
    if judged.verdict is Verdict.FAILED and is_asked_again(episode, 0):
        judged = await examine(run, episode, reading)
    return judged


async def confirm(run: Runtime, episode: Episode) -> Judgement:
    """The conditions once more: a diagnosis takes minutes, and what came meanwhile counts."""
    reading = await look(run, episode)
    judged = judge_conditions(reading.node, episode.policy, run.now())
    if judged.verdict is not Verdict.PASSED:
        episode.validation = None
    return judged


async def give_back(run: Runtime, episode: Episode, why: str) -> Outcome:
    """As it was found. A node that made way was found well and is not certified by this."""
    run.inbox.tell(run.now(), why)
    run.inbox.expectation = None
    await run.step(GIVE_BACK, GiveBackRequest(episode.owner))
    episode.marker = None
    episode.actions.append("give back")
    await release(run, episode, Budget.VALIDATION)
    return episode.end(Outcome.RETURNED, why)


async def leave_to_a_person(run: Runtime, episode: Episode) -> Outcome:
    """Somebody took the cordon or the mark off: nothing was said against the node, so that is all.

    The word is remembered, or the schedule would cordon the node again at its next tick.
    """
    if episode.owns(episode.marker):
        await give_back(run, episode, "our mark comes off")
    level = episode.order.level if episode.order else 0
    episode.validation = Validation(run.now(), TAKEN_BACK, level, "a person took the node back")
    return episode.end(Outcome.DISMISSED, "not validated: a person took the node back")


# ---------------------------------------------------------------- it is an episode


async def hand_over(run: Runtime, episode: Episode, judged: Judgement) -> None:
    """Not passed: from here on an ordinary episode, under the same mark and in the same run.

    A rule that matches, or the class that DCGM's words belong to, is its fault; else a diagnosis
    that failed is a class of its own, asked again before anything is repaired. All else (a count
    that is wrong, answers unknown) is of the unknown kind: asked again, the kernel log too, then
    held. The gate asks at no lower level than this validation.
    """
    reading = await look(run, episode)
    if episode.order is not None and episode.order.is_new and judged.verdict is Verdict.FAILED:
        condemn(run, episode, reading, judged)
        why = f"not admitted: {'; '.join(judged.reasons[:4])}"
        become_episode(run, episode, why)
        await publish(run, episode, f"{episode.fault}: {why}", "take a slot")
        return
    matches = match_rules(reading.node, episode.policy, run.now())
    hardware = hardware_in(episode.failures)
    if matches:
        episode.blame(matches[0])
    else:
        unknown = Fault.DIAGNOSTIC_FAILED if episode.failures else Fault.DIAGNOSTIC_UNKNOWN
        episode.learn(Fault(hardware[0].fault) if hardware else unknown, RULE)
    episode.doubted_level = episode.order.level if episode.order else 0
    why = f"validation {judged.verdict}: {'; '.join(judged.reasons[:4])}"
    become_episode(run, episode, why)
    await publish(run, episode, f"{episode.fault}: {why}", "take a slot")


def become_episode(run: Runtime, episode: Episode, why: str) -> None:
    """The order is done with: the rest is the runbook's."""
    run.inbox.tell(run.now(), f"no validation any more: {why}")
    run.inbox.fault = episode.fault
    episode.order = None
