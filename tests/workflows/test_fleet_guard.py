"""The guard on a real server: caps, order, pauses, restarts; and nobody is left waiting."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial

import pytest
import pytest_asyncio
from temporalio.client import WorkflowExecutionStatus

from tests.harness.temporal_server import dev_server
from tests.workflows.askers import Hall, ask_of, hall_of
from workflows.contracts import options
from workflows.contracts.messages import Ask, HeldMarks, PauseRequest, Release
from workflows.fleet_guard import UNNOTED_AFTER, GuardState
from workflows.model.remediation.budget import Budget

NOTES_S = 0.5
KEY = "disruption/training"


@pytest_asyncio.fixture
async def hall(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hall]:
    """Short waits for notes in flight; the guard continues as new every 40 events."""
    monkeypatch.setattr(options, "NOTE_S", NOTES_S)
    async with (
        dev_server({"limit.historyCount.suggestContinueAsNew": "40"}) as client,
        hall_of(client) as found,
    ):
        yield found


def holders(state: GuardState, key: str = KEY) -> set[str]:
    return set(state.ledgers[key].holders) if key in state.ledgers else set()


def waiting(state: GuardState, key: str = KEY) -> list[str]:
    return list(state.ledgers[key].waiting) if key in state.ledgers else []


async def test_the_cap_holds_and_all_are_granted_across_continue_as_new(hall: Hall) -> None:
    count = 12
    await hall.ask(0, holds_s=0.1, cap=3)
    await hall.granted(1)
    first = (await hall.guard.describe()).run_id
    for number in range(1, count):
        await hall.ask(number, holds_s=0.1, cap=3)
    await hall.granted(count)
    await hall.until_state(lambda state: not holders(state) and not waiting(state))
    assert hall.most <= 3
    assert sorted(hall.order) == sorted(f"node-{n}" for n in range(count))
    last = await hall.guard.describe()
    assert last.run_id != first, f"never continued as new: {last.history_length} events"
    assert (await hall.budgets()).epoch == "epoch-0"
    assert not hall.claims, "a guard that continues as new is no fresh one"


async def test_grants_come_in_the_order_of_asking(hall: Hall) -> None:
    asks = [ask_of(number, cap=1) for number in range(6)]
    await hall.start_guard("pause_changed", PauseRequest("*", True, "alice", "line up"))
    for number, ask in enumerate(asks):
        await hall.ask(number, cap=1)
        await hall.until_state(partial(has_waiting, ask))
    await hall.guard.signal("pause_changed", PauseRequest("*", False, "alice", "go"))
    for number, ask in enumerate(asks, start=1):
        await hall.granted(number)
        assert hall.order[-1] == ask.node.name
        await hall.done(ask)


async def test_a_place_granted_to_a_closed_workflow_is_free_again(hall: Hall) -> None:
    await hall.start_guard("ask", ask_of(1, cap=1))
    living = await hall.ask(2, cap=1)
    await hall.granted(1)
    assert hall.order == [living.node.name]


async def test_a_place_that_stands_on_a_node_stays_taken_when_its_asker_is_gone(hall: Hall) -> None:
    """P5: a late copy of the ask of a terminated episode frees nothing while the mark stands."""
    dead = await hall.ask(1, cap=1)
    await hall.granted(1)
    await hall.client.get_workflow_handle(dead.workflow_id).terminate()
    await hall.guard.signal("ask", dead)
    await hall.ask(2, cap=1)
    await hall.until_state(lambda state: waiting(state) == ["uid-2"] and not state.resend)
    await hall.guard.signal("reconcile", HeldMarks((("disruption", "uid-1"),), await late(hall)))
    state = await hall.until_state(lambda state: not state.doubted)
    assert holders(state) == {"uid-1"}
    hall.noted.pop("uid-1")
    await hall.guard.signal("reconcile", HeldMarks((), await late(hall)))
    await hall.granted(2)
    assert hall.most == 1


async def test_a_place_of_a_living_asker_that_has_not_noted_it_yet_stays_its(hall: Hall) -> None:
    """An episode that was paused between its grant and its note goes on with that grant."""
    living = await hall.ask(1, cap=1)
    await hall.granted(1)
    await hall.ask(2, cap=1)
    await hall.until_state(lambda state: waiting(state) == ["uid-2"])
    await hall.guard.signal("reconcile", HeldMarks((), await late(hall)))
    state = await hall.until_state(lambda state: not state.doubted)
    assert holders(state) == {living.node.uid}
    await hall.done(living)
    await hall.granted(2)


async def test_a_word_about_a_pause_that_was_lost_is_made_good_by_the_sweep(hall: Hall) -> None:
    """Resumed with Temporal away, or by kubectl: only the ConfigMap knows."""
    await hall.start_guard("pause_changed", PauseRequest("*", True, "alice", "maintenance"))
    asked = await hall.ask(1)
    await hall.until_state(lambda state: waiting(state) == [asked.node.uid])
    unread = HeldMarks(paused=None)
    await hall.guard.signal("reconcile", unread)
    assert (await hall.budgets()).paused == ["*"]
    await hall.guard.signal("reconcile", HeldMarks(paused=()))
    await hall.granted(1)
    await hall.guard.signal("reconcile", HeldMarks(paused=("training",)))
    await hall.until_state(lambda state: state.paused == ["training"])


def has_waiting(ask: Ask, state: GuardState) -> bool:
    return ask.node.uid in waiting(state)


async def late(hall: Hall) -> datetime:
    """A moment at which every place of now is doubted if no node is marked for it."""
    described = await hall.guard.describe()
    return described.start_time + 2 * UNNOTED_AFTER + timedelta(minutes=5)


@pytest.mark.parametrize("scope", ["*", "training"], ids=["fleet", "pool"])
async def test_a_pause_stops_disruption_and_not_quarantine(hall: Hall, scope: str) -> None:
    await hall.start_guard("pause_changed", PauseRequest(scope, True, "alice", "maintenance"))
    disrupting = await hall.ask(1)
    await hall.until_state(lambda state: waiting(state) == [disrupting.node.uid])
    marking = await hall.ask(2, budget=Budget.QUARANTINE)
    await hall.granted(1)
    other = await hall.ask(3, pool="inference")
    if scope == "training":
        await hall.granted(2)
    else:
        await hall.until_state(lambda s: waiting(s, "disruption/inference") == [other.node.uid])
    assert disrupting.node.name not in hall.order
    assert marking.node.name in hall.order
    await hall.guard.signal("pause_changed", PauseRequest(scope, False, "alice", "done"))
    await hall.granted(3)


@pytest.mark.parametrize("scope", ["*", "training"], ids=["fleet", "pool"])
async def test_a_pause_stops_validations_too(hall: Hall, scope: str) -> None:
    await hall.start_guard("pause_changed", PauseRequest(scope, True, "alice", "maintenance"))
    asked = await hall.ask(1, budget=Budget.VALIDATION)
    await hall.until_state(lambda s: waiting(s, "validation/training") == [asked.node.uid])
    marking = await hall.ask(2, budget=Budget.QUARANTINE)
    await hall.granted(1)
    assert hall.order == [marking.node.name]
    await hall.guard.signal("pause_changed", PauseRequest(scope, False, "alice", "done"))
    await hall.granted(2)


async def test_only_the_owners_episode_releases_a_place(hall: Hall) -> None:
    owner = await hall.ask(1, cap=1)
    await hall.granted(1)
    foreign = Release(owner.budget, owner.pool, owner.node.uid, "ep-of-yesterday")
    await hall.guard.signal("release", foreign)
    await hall.ask(2, cap=1)
    state = await hall.until_state(lambda state: waiting(state) == ["uid-2"])
    assert holders(state) == {owner.node.uid}
    await hall.done(owner)
    await hall.granted(2)


async def test_one_who_gives_up_while_others_are_granted_breaks_nothing(hall: Hall) -> None:
    """The release of a waiter may come between the grants of one round."""
    await hall.start_guard("pause_changed", PauseRequest("*", True, "alice", "line up"))
    asks = [ask_of(number, cap=4) for number in range(4)]
    for ask in asks:  # nobody answers for these: each grant fails after a round trip
        await hall.guard.signal("ask", ask)
    await hall.until_state(lambda state: len(waiting(state)) == len(asks))
    await hall.guard.signal("pause_changed", PauseRequest("*", False, "alice", "go"))
    for ask in asks:
        await hall.guard.signal("release", released(ask))
    living = await hall.ask(9, cap=4)
    await hall.granted(1)
    assert hall.order == [living.node.name]
    described = await hall.guard.describe()
    assert described.status is WorkflowExecutionStatus.RUNNING


def released(ask: Ask) -> Release:
    return Release(ask.budget, ask.pool, ask.node.uid, ask.episode)


async def test_a_fresh_guard_counts_the_marks_before_its_first_grant(hall: Hall) -> None:
    hall.state = None
    for number in (1, 2):  # noted by episodes that a former guard granted
        hall.noted[f"uid-{number}"] = ask_of(number)
    waiter = await hall.ask(3, cap=2)
    state = await hall.until_state(
        lambda state: waiting(state) == [waiter.node.uid] and state.epoch != ""
    )
    assert holders(state) == {"uid-1", "uid-2"}
    assert hall.claims == [state.epoch]
    assert hall.order == []
    hall.noted.pop("uid-1")
    await hall.guard.signal("release", released(ask_of(1)))
    await hall.granted(1)
    assert hall.most == 2


async def test_a_note_in_flight_at_the_restart_is_counted(hall: Hall) -> None:
    """The former guard's last grant may be noted after the new guard started."""
    hall.state = None
    await hall.ask(2, cap=1)
    await hall.until(lambda: bool(hall.claims))
    hall.noted["uid-1"] = ask_of(1)  # within the time that a note may take
    state = await hall.until_state(lambda state: bool(state.epoch))
    assert holders(state) == {"uid-1"}
    assert hall.order == []


async def test_a_terminated_guard_strands_nobody_and_grants_nothing_twice(hall: Hall) -> None:
    hall.state = None
    asks = {ask.node.name: ask for ask in [await hall.ask(n, cap=2) for n in range(4)]}
    await hall.granted(2)
    before = await hall.budgets()
    await hall.guard.terminate("a person's mistake")
    await hall.until(lambda: len(hall.claims) == 2)  # those who wait ask again by themselves
    for count in (3, 4):
        await hall.done(asks[hall.order[count - 3]])
        await hall.granted(count)
    assert hall.most <= 2
    assert sorted(hall.order) == sorted(asks)
    assert (await hall.budgets()).epoch != before.epoch


async def test_a_guard_that_is_terminated_under_load_keeps_the_budget_and_strands_nobody(
    hall: Hall,
) -> None:
    """Each new guard meets the former one's holders, who stay beyond its survey, and all asks at once."""
    hall.state, cap, count = None, 3, 15
    asks = [await hall.ask(number, holds_s=4 * NOTES_S, cap=cap) for number in range(count)]
    kills = (2, 6, 10)
    for granted in kills:
        await hall.granted(granted)
        await hall.guard.terminate("a person's mistake")
    await asyncio.gather(*(hall.ended(ask) for ask in asks))
    assert hall.most <= cap
    assert sorted(hall.order) == sorted(ask.node.name for ask in asks)
    assert len(set(hall.claims)) > len(kills)
    await hall.until_state(lambda state: not holders(state) and not waiting(state))


async def test_a_guard_whose_grants_are_refused_claims_anew_and_counts_the_marks(
    hall: Hall,
) -> None:
    """An API server restored from a backup knows another guard: nobody may wait for ever."""
    hall.state = None
    first = await hall.ask(1, cap=1)
    await hall.granted(1)
    before = (await hall.budgets()).epoch
    hall.claims.append("of-the-backup")
    second = await hall.ask(2, cap=1)
    await hall.done(first)
    await hall.granted(2)
    await hall.done(second)
    assert hall.most == 1
    assert hall.refused >= 1  # the guard may send a grant again
    assert hall.claims[-1] == (await hall.budgets()).epoch not in (before, "of-the-backup")
