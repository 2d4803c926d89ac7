"""The Schedules of a cluster: sweeps, and validations of idle nodes.

Owns what each of them is, and bringing it about from any number of processes: made if it is not
there, corrected if its settings have changed, a person's pause kept. What a tick starts is
`workflows/sweep.py` and `workflows/validate_fleet.py`. The worker calls it at its start; a
person's `fleetmend setup temporal` makes what is missing and corrects only when told to.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from workers.control.settings import WorkerSettings
from workflows.contracts.fleet import FleetOrder
from workflows.contracts.guard import SweepRequest
from workflows.model.identity import sweep_workflow_id, task_queue, validation_workflow_id
from workflows.sweep import Sweep
from workflows.validate_fleet import ValidateFleet


class Ensured(StrEnum):
    """What was done so that a Schedule is as it is wanted."""

    CREATED = "created"
    CORRECTED = "corrected"
    UNCHANGED = "unchanged"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Wanted:
    """One Schedule as the settings want it; `at_once` = a tick at its start, and at each worker's."""

    identity: str
    schedule: Schedule
    at_once: bool = False


@dataclass(frozen=True)
class Difference:
    """One setting of a Schedule, for people: as it stands there, and as it is wanted."""

    what: str
    there: str
    wanted: str


@dataclass(frozen=True)
class Standing:
    """A Schedule that is there, and how it differs from the one that is wanted."""

    done: Ensured
    differences: tuple[Difference, ...] = ()


def wanted_schedules(settings: WorkerSettings) -> tuple[Wanted, ...]:
    """Every Schedule of the cluster."""
    return (_sweeps(settings), _validations(settings))


async def ensure_schedule(client: Client, wanted: Wanted) -> Ensured:
    """The Schedule stands as it is wanted. Safe to repeat, and in several processes at once.

    Raises:
        RPCError: Temporal did not answer; try again.
    """
    if await _is_created(client, wanted):
        return Ensured.CREATED
    return await _correct(client, wanted)


async def make_schedule(client: Client, wanted: Wanted) -> Standing:
    """There is a Schedule; one that stands already is left as it is. Safe to repeat.

    For a caller whose environment need not be the worker's.

    Raises:
        RPCError: Temporal did not answer; try again.
    """
    if await _is_created(client, wanted):
        return Standing(Ensured.CREATED)
    found = await client.get_schedule_handle(wanted.identity).describe()
    differences = _differences(found.schedule, wanted.schedule)
    return Standing(Ensured.DIFFERS if differences else Ensured.UNCHANGED, differences)


async def _is_created(client: Client, wanted: Wanted) -> bool:
    """False = there was one already."""
    try:
        await client.create_schedule(
            wanted.identity, wanted.schedule, trigger_immediately=wanted.at_once
        )
    except ScheduleAlreadyRunningError:
        return False
    return True


async def _correct(client: Client, wanted: Wanted) -> Ensured:
    done = Ensured.UNCHANGED

    def corrected(found: ScheduleUpdateInput) -> ScheduleUpdate | None:
        nonlocal done
        now, want = found.description.schedule, wanted.schedule
        if _rhythm(now) == _rhythm(want):
            return None
        done = Ensured.CORRECTED
        # A person's pause of the schedule stays.
        now.spec, now.policy, now.action = want.spec, want.policy, want.action
        return ScheduleUpdate(now)

    await client.get_schedule_handle(wanted.identity).update(corrected)
    return done


def _rhythm(schedule: Schedule) -> tuple[object, ...]:
    """What our settings say of it; the server tells a jitter of 0 as none."""
    spec = schedule.spec
    return (spec.intervals, spec.jitter or timedelta(), schedule.policy)


def _differences(there: Schedule, want: Schedule) -> tuple[Difference, ...]:
    """In what their rhythms differ; empty = not at all."""
    if _rhythm(there) == _rhythm(want):
        return ()
    wanted = _in_words(want)
    named = tuple(
        Difference(what, text, wanted[what])
        for what, text in _in_words(there).items()
        if text != wanted[what]
    )
    return named or (Difference("other settings", "changed by hand", "ours"),)


def _in_words(schedule: Schedule) -> dict[str, str]:
    spec, policy = schedule.spec, schedule.policy
    return {
        "every": " and ".join(_seconds(one.every) for one in spec.intervals) or "never",
        "jitter": _seconds(spec.jitter),
        "catch-up": _seconds(policy.catchup_window),
        "overlap": policy.overlap.name.lower(),
    }


def _seconds(span: timedelta | None) -> str:
    return f"{(span or timedelta()).total_seconds():g} s"


def _sweeps(settings: WorkerSettings) -> Wanted:
    identity = sweep_workflow_id(settings.cluster)
    action = ScheduleActionStartWorkflow(
        Sweep.run,
        SweepRequest(settings.cluster),
        id=identity,
        task_queue=task_queue(settings.cluster),
        static_summary=f"sweep of cluster {settings.cluster}",
    )
    schedule = Schedule(
        action=action,
        spec=_every(settings.sweep_interval_s, settings.sweep_jitter_s),
        policy=_policy(settings.sweep_catch_up_s),
        state=ScheduleState(note="marks without an open episode, baselines of healthy nodes"),
    )
    return Wanted(identity, schedule, at_once=True)


def _validations(settings: WorkerSettings) -> Wanted:
    identity = validation_workflow_id(settings.cluster)
    action = ScheduleActionStartWorkflow(
        ValidateFleet.run,
        FleetOrder(settings.cluster),
        id=identity,
        task_queue=task_queue(settings.cluster),
        static_summary=f"validation of idle nodes of cluster {settings.cluster}",
    )
    schedule = Schedule(
        action=action,
        spec=_every(settings.validation_interval_s, settings.validation_jitter_s),
        policy=_policy(settings.validation_catch_up_s),
        state=ScheduleState(note="idle nodes of pools whose policy enables validation"),
    )
    return Wanted(identity, schedule)


def _every(interval_s: float, jitter_s: float) -> ScheduleSpec:
    return ScheduleSpec(
        intervals=[ScheduleIntervalSpec(every=timedelta(seconds=interval_s))],
        jitter=timedelta(seconds=jitter_s),
    )


def _policy(catch_up_s: float) -> SchedulePolicy:
    return SchedulePolicy(
        overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(seconds=catch_up_s)
    )
