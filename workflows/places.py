"""Places in the budgets: asked of the guard, noted on the node, and given up again.

Owns the order that keeps budgets safe: granted, then noted in the marker, then used; taken off the
marker, then released. Called by the runbook; talks to the guard through contracts.
"""

from datetime import timedelta

from workflows.contracts.guard import ASK_GUARD, RELEASE_PLACE
from workflows.contracts.kube import DROP_SLOT, NOTE_SLOT, SlotRequest
from workflows.contracts.messages import Ask, Release
from workflows.episode import Episode
from workflows.model.amounts import nodes_of_share
from workflows.model.remediation.budget import Budget
from workflows.pacing import pause_after
from workflows.runtime import Runtime

ASK_AGAIN_S = (60.0, 120.0, 300.0, 600.0)
"""Seconds until an unanswered ask is repeated; the last one for ever."""
REFUSED_AGAIN = timedelta(seconds=30)
"""Before the next ask when the same guard's grant was refused twice: it is counting anew by then."""


async def take_place(run: Runtime, episode: Episode, budget: Budget) -> str:
    """Asks the guard until it grants; the epoch of the grant."""
    asks = 0
    while budget not in run.inbox.grants:
        await ask_once(run, episode, budget, pause_after(asks, ASK_AGAIN_S))
        asks += 1
    return run.inbox.grants[budget].epoch


async def try_place(run: Runtime, episode: Episode, budget: Budget, within: timedelta) -> str:
    """The epoch of the grant; "" = there was none in time, and the place is not wanted any more."""
    ends = run.now() + within
    while budget not in run.inbox.grants:
        left = ends - run.now()
        if left <= timedelta():
            await release(run, episode, budget)
            return ""
        await ask_once(run, episode, budget, min(left, pause_after(0, ASK_AGAIN_S)))
    return run.inbox.grants[budget].epoch


async def ask_once(run: Runtime, episode: Episode, budget: Budget, patience: timedelta) -> None:
    """One ask, and a wait for its grant."""
    ask = Ask(
        budget=budget,
        pool=episode.pool,
        cap=nodes_of_share(share_of(episode, budget), episode.pool_size),
        node=episode.opening.node,
        episode=episode.id,
        workflow_id="",
        run_id="",
        number=run.inbox.want(budget),
        refused=episode.refused.get(budget, ""),
    )
    episode.asked.add(budget)
    await run.step(ASK_GUARD, ask)
    await run.wait(lambda inbox: budget in inbox.grants, patience)


def share_of(episode: Episode, budget: Budget) -> int | str:
    """What the policy says of a budget of the episode's pool."""
    pool = episode.policy.pool_named(episode.pool)
    if pool is None:
        return 1
    match budget:
        case Budget.DISRUPTION:
            return pool.budgets.disruption
        case Budget.QUARANTINE:
            return pool.budgets.confirmed_quarantine
        case Budget.VALIDATION:
            return pool.budgets.validation
        case Budget.ADMISSION:
            return pool.budgets.admission


async def take_slot(run: Runtime, episode: Episode) -> None:
    """A slot, granted and noted in the marker, before anything is disrupted."""
    while episode.marker is None or episode.marker.slot is None:
        epoch = await take_place(run, episode, Budget.DISRUPTION)
        noted = await run.step(NOTE_SLOT, SlotRequest(episode.owner, epoch))
        episode.marker = noted.marker
        if noted.refused:
            await turn_back(run, episode, Budget.DISRUPTION, f"slot refused: {noted.refused}")


async def turn_back(run: Runtime, episode: Episode, budget: Budget, why: str) -> None:
    """The grant was refused as an older guard's: the next ask says so, and is not made in haste."""
    run.inbox.tell(run.now(), why)
    grant = run.inbox.grants.pop(budget, None)
    epoch = grant.epoch if grant else ""
    is_again = episode.refused.get(budget) == epoch
    episode.refused[budget] = epoch
    if is_again:
        await run.wait(lambda _inbox: False, REFUSED_AGAIN)


async def free_slot(run: Runtime, episode: Episode) -> None:
    """First the note comes off the node, then the guard may give the place to another."""
    if episode.marker and episode.marker.slot:
        dropped = await run.step(DROP_SLOT, SlotRequest(episode.owner, ""))
        episode.marker = dropped.marker
    await release(run, episode, Budget.DISRUPTION)


async def release_all(run: Runtime, episode: Episode) -> None:
    """Tells the guard that every place this episode asked for is free."""
    for budget in (Budget.DISRUPTION, Budget.QUARANTINE, Budget.VALIDATION, Budget.ADMISSION):
        await release(run, episode, budget)


async def release(run: Runtime, episode: Episode, budget: Budget) -> None:
    """Tells the guard that a place this episode asked for is free."""
    if budget in episode.asked:
        freed = Release(budget, episode.pool, episode.opening.node.uid, episode.id)
        run.inbox.give_up(budget)
        await run.step(RELEASE_PLACE, freed)
        episode.asked.discard(budget)
