"""FleetGuard: the entity workflow that holds every pool's budget.

Owns who holds which place: asks come as signals, grants go as signals, first come first served,
one cap for each pool and budget. Its whole state is one value, carried over continue-as-new. A
fresh guard makes its epoch the only valid one, waits out notes in flight, and counts the marks on
the nodes before its first grant. Arithmetic is in `model/remediation/budget.py`.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from workflows.contracts.guard import CLAIM_EPOCH, SURVEY_MARKS, RebuildRequest
from workflows.contracts.messages import Ask, Grant, HeldMarks, PauseRequest, Release
from workflows.contracts.options import NOTE_S, options_of
from workflows.model.remediation.arming import FLEET
from workflows.model.remediation.budget import Budget, grantable

UNNOTED_AFTER = timedelta(minutes=10)
"""A granted place that is on no node this long after its grant is doubted: does its asker live?"""

IN_A_PAUSE = frozenset({Budget.QUARANTINE, Budget.ADMISSION})
"""Granted in a pause of the pool or the fleet too: neither disrupts anything."""


@dataclass
class Holder:
    """Who has a place since when; `ask` None = counted from a mark."""

    node_uid: str
    episode: str
    at: datetime
    ask: Ask | None = None


@dataclass
class Ledger:
    """One budget of one pool. `waiting` is in the order of asking, one line for each node."""

    cap: int = 1
    holders: dict[str, Holder] = field(default_factory=dict)
    waiting: dict[str, Ask] = field(default_factory=dict)


@dataclass
class GuardState:
    """Everything the guard knows; keys of `ledgers` are "<budget>/<pool>".

    `resend` are asks of holders, to be granted again; `doubted` are those of holders that no node
    is marked for: their places are free if the asker has closed.
    """

    epoch: str = ""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    paused: list[str] = field(default_factory=list)
    resend: list[Ask] = field(default_factory=list)
    doubted: list[Ask] = field(default_factory=list)


@workflow.defn(name="FleetGuard")
class FleetGuard:
    """One per cluster."""

    @workflow.init
    def __init__(self, state: GuardState | None = None) -> None:
        """Takes over the state of the run before, if there is one."""
        self._state = state or GuardState()
        self._news = True
        self._is_disowned = False

    @workflow.run
    async def run(self, state: GuardState | None = None) -> None:
        """For ever: grant what fits, whenever something has changed."""
        del state
        if not self._state.epoch:
            await self._rebuild()
        while not workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: self._news)
            self._news = False
            if self._is_disowned:
                await self._rebuild()
            await self._grant_what_fits()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._state)

    @workflow.signal(description="an episode asks for a place")
    def ask(self, ask: Ask) -> None:
        """Idempotent: one place in the line for each node; a newer ask renews cap and asker."""
        ledger = self._ledger(ask.budget, ask.pool)
        ledger.cap = ask.cap
        holder = ledger.holders.get(ask.node.uid)
        if holder is not None:
            holder.ask, holder.episode = ask, ask.episode
            self._state.resend.append(ask)
        else:
            ledger.waiting[ask.node.uid] = ask
        self._is_disowned |= bool(ask.refused) and ask.refused == self._state.epoch
        self._news = True

    @workflow.signal(description="a place is free: its mark is off the node")
    def release(self, release: Release) -> None:
        """Idempotent; only the episode that holds the place frees it."""
        ledger = self._ledger(release.budget, release.pool)
        holder = ledger.holders.get(release.node_uid)
        if holder is not None and holder.episode == release.episode:
            del ledger.holders[release.node_uid]
        waiting = ledger.waiting.get(release.node_uid)
        if waiting is not None and waiting.episode == release.episode:
            del ledger.waiting[release.node_uid]
        self._news = True

    @workflow.signal(description="a pool or the fleet was paused or resumed")
    def pause_changed(self, request: PauseRequest) -> None:
        """The ConfigMap is the truth; this only stops grants at once."""
        scopes = set(self._state.paused)
        scopes = scopes | {request.scope} if request.paused else scopes - {request.scope}
        self._state.paused = sorted(scopes)
        self._news = True

    @workflow.signal(description="the sweep saw these places noted on nodes")
    def reconcile(self, marks: HeldMarks) -> None:
        """Frees places that nobody noted long after they were granted, unless the asker lives.

        One that lives may be paused between its grant and its note, and go on any time. What is
        paused is taken from the ConfigMap as it was read: a word about it may have been lost.
        """
        if marks.paused is not None and sorted(marks.paused) != self._state.paused:
            self._state.paused = sorted(marks.paused)
            self._news = True
        noted = set(marks.noted)
        now = marks.at or workflow.now()
        for key, ledger in self._state.ledgers.items():
            budget = key.split("/", 1)[0]
            for uid, holder in list(ledger.holders.items()):
                if (budget, uid) in noted or now - holder.at <= UNNOTED_AFTER:
                    continue
                if holder.ask is None:
                    del ledger.holders[uid]
                else:
                    self._state.doubted.append(holder.ask)
                self._news = True

    @workflow.query(description="who holds and who waits")
    def budgets(self) -> GuardState:
        """The whole state."""
        return self._state

    def _ledger(self, budget: Budget, pool: str) -> Ledger:
        return self._state.ledgers.setdefault(f"{budget.value}/{pool}", Ledger())

    async def _rebuild(self) -> None:
        """A new epoch, and all that is marked is counted.

        For a fresh guard, and for one whose grants are refused: the API server was restored from a
        backup that knows another guard, or a second one had been started.
        """
        self._is_disowned = False
        request = RebuildRequest(
            str(workflow.uuid4()) if self._state.epoch else workflow.info().first_execution_run_id
        )
        self._state.epoch = ""  # what is refused from here on was of the former one
        await _call(CLAIM_EPOCH.name, request)
        await workflow.sleep(timedelta(seconds=NOTE_S), summary="wait out notes in flight")
        rebuilt = await workflow.execute_activity(
            SURVEY_MARKS.name,
            request,
            result_type=SURVEY_MARKS.result,
            summary=SURVEY_MARKS.summary,
            start_to_close_timeout=options_of(SURVEY_MARKS.name).start_to_close,
        )
        for place in rebuilt.places:
            ledger = self._ledger(Budget(place.budget), place.pool)
            uid = place.node.uid
            ledger.holders[uid] = Holder(uid, place.episode, place.at)
            waiting = ledger.waiting.pop(uid, None)
            if waiting is not None:
                ledger.holders[uid].ask = waiting
                self._state.resend.append(waiting)
        self._state.paused = sorted({*self._state.paused, *rebuilt.paused})
        self._state.epoch = request.epoch

    async def _grant_what_fits(self) -> None:
        """A place whose grant reaches nobody is free again only if no node can be marked for it."""
        state = self._state
        resend, state.resend = state.resend, []
        doubted, state.doubted = state.doubted, []
        for ask in resend:
            await self._grant(ask)
        for ask in [*doubted, *self._allot()]:
            if not await self._grant(ask):
                self._give_up(ask)

    def _allot(self) -> list[Ask]:
        """Makes holders of those whose turn it is. No await: what is counted is what is."""
        allotted = []
        for key in sorted(self._state.ledgers):
            ledger = self._state.ledgers[key]
            budget, pool = key.split("/", 1)
            if budget not in IN_A_PAUSE and self._is_paused(pool):
                continue
            for uid in grantable(list(ledger.waiting), ledger.holders, ledger.cap):
                ask = ledger.waiting.pop(uid)
                ledger.holders[uid] = Holder(uid, ask.episode, workflow.now(), ask)
                allotted.append(ask)
        return allotted

    def _is_paused(self, pool: str) -> bool:
        return FLEET in self._state.paused or pool in self._state.paused

    async def _grant(self, ask: Ask) -> bool:
        """Signals the asker; False = it has closed."""
        grant = Grant(ask.budget, self._state.epoch, ask.episode, workflow.now(), ask.number)
        handle = workflow.get_external_workflow_handle(ask.workflow_id, run_id=ask.run_id or None)
        try:
            await handle.signal("grant", grant)
        except (ApplicationError, FailureError):
            return False
        return True

    def _give_up(self, ask: Ask) -> None:
        ledger = self._ledger(ask.budget, ask.pool)
        holder = ledger.holders.get(ask.node.uid)
        if holder is not None and holder.ask == ask:
            del ledger.holders[ask.node.uid]
            self._news = True


async def _call(name: str, request: RebuildRequest) -> None:
    await workflow.execute_activity(
        name, request, start_to_close_timeout=options_of(name).start_to_close
    )
