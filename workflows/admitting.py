"""Admitting: a new node is counted and diagnosed before its first job; then its startup taint goes.

Owns the course of an admission inside the node's own run, so that there is one run and one owner
whatever happens meanwhile: what fails here is an ordinary episode on the spot, whose ladder starts
at replace. The taint keeps work off, so nothing is marked until then. It waits without an end, but
never in silence. Called by the runbook; the questions to a newcomer are `succeeding.py`'s.
"""

from dataclasses import replace
from datetime import timedelta

from workflows.asking import question
from workflows.contracts import Contract
from workflows.contracts.karpenter import RESOLVE_CLAIM
from workflows.contracts.kube import (
    ADMIT_NODE,
    GIVE_BACK,
    OPEN_EPISODE,
    AdmitRequest,
    GiveBackRequest,
    Reading,
)
from workflows.contracts.machines import Validation
from workflows.contracts.messages import Command
from workflows.contracts.node_tasks import DIAGNOSE, INVENTORY, NodeTaskRequest, TaskAnswer
from workflows.diagnosing import ask_node, hardware_in, judge_diagnosis
from workflows.episode import Episode
from workflows.inbox import Inbox
from workflows.model.detection.fault import UNKNOWN_KIND, Fault
from workflows.model.detection.rules import match_rules
from workflows.model.node_task import Health, TaskKind
from workflows.model.remediation.admission import (
    STARTUP_TAINT,
    is_newcomer,
    is_registered,
    judge_offer,
)
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Judgement, Verdict, judge_conditions
from workflows.model.remediation.phase import Outcome, Phase
from workflows.model.upkeep import AdmissionPolicy
from workflows.pacing import LOOK_AGAIN_S, pause_after
from workflows.places import ASK_AGAIN_S, ask_once, release, release_all
from workflows.proving import has_news_since, look
from workflows.runtime import Runtime, Until
from workflows.succeeding import diagnosis_of, judge_count, record_baseline, task
from workflows.telling import publish

RULE = "admission"
"""In the marker's place of a rule: no rule of the policy matched."""
FIRST_ASK = timedelta(seconds=5)
"""The guard answers within a second if there is a place; after this it is told that there is none."""


async def admit(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """From the first look to the end of the taint; None = look again (as an episode, mostly)."""
    begun, looks, told, failed = run.now(), 0, "", 0
    episode.validation, run.inbox.newcomer = None, False
    limit = timedelta(seconds=rule_of(episode).timeout_s)
    while is_newcomer(reading.node) and reading.marker is None:
        forget_what_passed(run, episode, reading)
        news = run.inbox.news
        judged = judge_lasting(run, episode, reading)
        if judged.verdict is Verdict.PASSED:
            if Budget.ADMISSION not in run.inbox.grants:
                waited = run.now()
                await take_turn(run, episode)
                begun += run.now() - waited  # who waits for others is not late
                reading = await look(run, episode)
                continue
            judged = await examine(run, episode, reading)
        if judged.verdict is Verdict.PASSED and run.inbox.fresh:
            return None  # reported while it was examined: heard at the next look
        if judged.verdict is Verdict.PASSED:
            return await let_in(run, episode, reading)
        if judged.verdict is Verdict.FAILED and is_asked_again(episode, failed):
            failed += 1
            run.inbox.tell(run.now(), f"asked again: {'; '.join(judged.reasons[:4])}")
            reading = await look(run, episode)
            continue
        if judged.verdict is Verdict.FAILED:
            await refuse(run, episode, reading, judged)
            return None
        why = f"not admitted yet: {'; '.join(judged.reasons[:4])}"
        left = begun + limit - run.now()
        if left <= timedelta():
            await ask_people(run, episode, reading, why)
            begun, looks, reading = run.now(), 0, await look(run, episode)
            continue
        if why != told:
            await publish(run, episode, why, "wait for admission")
            told = why
        await run.wait(has_news_since(news), min(left, pause_after(looks)))
        looks += 1
        reading = await look(run, episode)
    return await leave(run, episode, reading)


def rule_of(episode: Episode) -> AdmissionPolicy:
    """What the policy says about admissions to the node's pool."""
    pool = episode.pool_policy
    return pool.admission if pool else AdmissionPolicy()


def forget_what_passed(run: Runtime, episode: Episode, reading: Reading) -> None:
    """A new node begins without a word of its agent: what was reported then says nothing now."""
    if not match_rules(reading.node, episode.policy, run.now()):
        episode.match, episode.fault, episode.rule = None, Fault.OPERATOR, ""
    run.inbox.fault = episode.fault


async def take_turn(run: Runtime, episode: Episode) -> None:
    """A place among those that are examined at once; says so if it has to wait."""
    asks = 0
    while Budget.ADMISSION not in run.inbox.grants:
        if asks == 1:
            why = "not admitted yet: others of its pool are being examined (budgets.admission)"
            await publish(run, episode, why, "wait for a place")
        patience = FIRST_ASK if asks == 0 else pause_after(asks, ASK_AGAIN_S)
        await ask_once(run, episode, Budget.ADMISSION, patience)
        asks += 1


# ---------------------------------------------------------------- the examination


def judge_lasting(run: Runtime, episode: Episode, reading: Reading) -> Judgement:
    """The conditions; what is bad counts once it has lasted as long as its rule wants."""
    now = run.now()
    if not is_registered(reading.node):
        return Judgement(Verdict.UNKNOWN, ("Karpenter has not registered it yet",))
    judged = judge_conditions(reading.node, episode.policy, now)
    if judged.verdict is Verdict.FAILED and not any(
        match.immediate or now - match.since >= timedelta(seconds=match.debounce_s)
        for match in match_rules(reading.node, episode.policy, now)
        if match.fault not in UNKNOWN_KIND
    ):
        return Judgement(Verdict.UNKNOWN, judged.reasons)
    return judged


async def examine(run: Runtime, episode: Episode, reading: Reading) -> Judgement:
    """One look: the count on the node itself, what the cluster offers, the diagnosis.

    Raises:
        GaveWay: a pod needs the node, which is in service; never of one with the startup taint.
    """
    episode.validation, episode.failures = None, ()
    pool, level = episode.pool_policy, rule_of(episode).level
    expected = pool.expected_gpus if pool else None
    if expected is None:
        return Judgement(Verdict.UNKNOWN, (f"set expected_gpus of pool {episode.pool or '?'}",))
    count = task(run, episode, episode.owner, TaskKind.INVENTORY)
    counted = await ask_newcomer(run, episode, INVENTORY, count)
    judged = judge_count(reading, counted, expected)
    if judged.verdict is Verdict.FAILED:
        doubt = await doubt_policy(run, episode, len(set(counted.gpus)), expected)
        if doubt:
            return Judgement(Verdict.UNKNOWN, (*judged.reasons, doubt))
    if judged.verdict is Verdict.PASSED:
        judged = judge_offer(reading.node, expected)
    if judged.verdict is not Verdict.PASSED:
        return judged
    asked = diagnosis_of(run, episode, reading, level, expected)
    answer = await ask_newcomer(run, episode, DIAGNOSE, asked)
    episode.failures = answer.failures if answer.health is Health.FAULTY else ()
    judged = judge_diagnosis(answer, reading.node.boot_id)
    words = "; ".join(judged.reasons) or answer.detail
    episode.validation = Validation(run.now(), judged.verdict.value, level, words)
    if judged.verdict is Verdict.PASSED:
        await record_baseline(run, episode, episode.owner, reading, counted)
    return judged


async def ask_newcomer(
    run: Runtime,
    episode: Episode,
    contract: Contract[NodeTaskRequest, TaskAnswer],
    request: NodeTaskRequest,
) -> TaskAnswer:
    """The node's answer; no taint keeps pods off one in service, so that one must be idle.

    It makes way as in any validation, unless something was said against it.
    """
    if episode.order is not None:
        gives_way = not episode.doubted_level
        request = replace(request, needs_idle=True, gives_way=gives_way, needs_drained=False)
    return await ask_node(run, contract, request)


def is_asked_again(episode: Episode, failed: int) -> bool:
    """True once, if only DCGM says that something is wrong, in words that name no hardware."""
    return failed == 0 and bool(episode.failures) and not hardware_in(episode.failures)


async def doubt_policy(run: Runtime, episode: Episode, counted: int, expected: int) -> str:
    """Why the policy is wrong and not the machine; "" = nothing says so.

    One that expects too much would have every machine of the pool replaced, one after the other.
    """
    if counted > expected:
        return "expected_gpus of the pool is too low"
    if episode.on_karpenter:
        promised = (await run.step(RESOLVE_CLAIM, episode.owner)).gpus
        if 0 < promised <= counted:
            return f"its machine type has {promised}: expected_gpus of the pool is too high"
    return ""


# ---------------------------------------------------------------- how it ends


async def let_in(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """The taint goes before anything is told: work may wait for it.

    What refuses it came after the examination: None = examine it anew, under the policy of then.
    """
    run.inbox.newcomer = False  # from here on a report of it says that the taint has come back
    done = await run.step(ADMIT_NODE, AdmitRequest(episode.owner, reading.node.boot_id))
    if done.refused:
        episode.validation = None
        await release(run, episode, Budget.ADMISSION)
        await publish(run, episode, f"not admitted: {done.refused}", "look again")
        await run.wait(has_news_since(run.inbox.news), timedelta(seconds=LOOK_AGAIN_S[-1]))
        await read_policy_again(run, episode)
        return None
    episode.actions.append("admit")
    await release(run, episode, Budget.ADMISSION)
    episode.enter(Phase.VALIDATED, run.now())
    found = episode.validation.detail if episode.validation else ""
    words = f"admitted at level {rule_of(episode).level}: {found}"
    await publish(run, episode, words, "close")
    return episode.end(Outcome.RETURNED, words)


async def refuse(run: Runtime, episode: Episode, reading: Reading, judged: Judgement) -> None:
    """From here on an episode: taken out of service, its ladder starting at replace."""
    condemn(run, episode, reading, judged)
    await release(run, episode, Budget.ADMISSION)
    why = f"not admitted: {'; '.join(judged.reasons[:4])}"
    run.inbox.tell(run.now(), why)
    await publish(run, episode, f"{episode.fault}: {why}", "quarantine")


def condemn(run: Runtime, episode: Episode, reading: Reading, judged: Judgement) -> None:
    """What a new node that has failed is said to have.

    Fewer GPUs than the pool's are lost ones; what DCGM's words name is that class, and a diagnosis
    that has failed twice without such words a class of its own.
    """
    matches = match_rules(reading.node, episode.policy, run.now())
    hardware = hardware_in(episode.failures)
    if matches:
        episode.blame(matches[0])
    elif hardware:
        episode.learn(Fault(hardware[0].fault), RULE)
    else:
        is_diagnosed = episode.validation is not None and episode.validation.level > 0
        episode.learn(Fault.DIAGNOSTIC_FAILED if is_diagnosed else Fault.GPU_LOST, RULE)
    run.inbox.fault = episode.fault
    episode.is_refused = True
    episode.note_gate(run.now(), judged)


async def ask_people(run: Runtime, episode: Episode, reading: Reading, why: str) -> None:
    """Unknown for too long: the taint stays until a person says more, or takes it off.

    The next look is under the policy of that day: most often it was the policy that was wrong.
    """
    await release(run, episode, Budget.ADMISSION)
    words = (
        "resume = examine it again; deny = stay held; retire = take it out of service for good; "
        f"kubectl taint node NAME {STARTUP_TAINT}- = let work in"
    )
    until = is_answered_after(reading)
    with question(run, episode) as asked:
        await asked.answer(why, words, until, lambda word: word in (None, Command.RESUME))
        await read_policy_again(run, episode)


def is_answered_after(reading: Reading) -> Until:
    """A person has said something, or the taint is off."""
    version = int(reading.node.resource_version or 0)

    def until(inbox: Inbox) -> bool:
        facts = inbox.facts
        is_newer = facts is not None and int(facts.resource_version or 0) > version
        return bool(inbox.answers) or (facts is not None and is_newer and not facts.newcomer)

    return until


async def read_policy_again(run: Runtime, episode: Episode) -> None:
    """Before anything of this episode was done under the old one."""
    opened = await run.step(OPEN_EPISODE, episode.owner)
    episode.policy, episode.pool = opened.policy, opened.pool
    episode.pool_size = opened.pool_size
    run.overrides = opened.policy.steps
    await publish(run, episode, "looked at again", "examine")


async def examine_again(run: Runtime, episode: Episode) -> None:
    """A person has mended a newcomer that was refused, or of which it could not be told.

    Our mark goes, as the taint keeps work off; without a taint it stays, and the order stands anew:
    until it has passed, it makes way for no pod.
    """
    episode.match = None
    if episode.is_newcomer:
        await release_all(run, episode)
        run.inbox.expectation = None
        await run.step(GIVE_BACK, GiveBackRequest(episode.owner))
        episode.marker = None
    else:
        episode.order, episode.fault = episode.opening.validation, Fault.OPERATOR
        episode.doubted_level = episode.order.level if episode.order else 0
    episode.is_refused = episode.is_learned = episode.drained = episode.recover = False
    episode.is_approved = False
    await publish(run, episode, "to be examined again", "examine")


async def leave(run: Runtime, episode: Episode, reading: Reading) -> Outcome | None:
    """The taint is off, or somebody has marked the node: nothing is left to admit."""
    await release(run, episode, Budget.ADMISSION)
    if reading.marker is not None:
        return None
    if match_rules(reading.node, episode.policy, run.now()):
        return None
    return episode.end(Outcome.DISMISSED, f"somebody took {STARTUP_TAINT} off: it is in service")
