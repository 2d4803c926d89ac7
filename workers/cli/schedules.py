"""`fleetmend setup temporal` and `fleetmend schedules list|pause|resume|trigger`.

Owns the table of the cluster's Schedules and a person's word to one of them. What they are is
`workers/control/schedules.py`'s, which the worker uses at its start as well: a Schedule that was
paused here stays paused.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, TypeVar

from rich.markup import escape
from temporalio.client import Client, ScheduleDescription, ScheduleHandle

from workers.cli.caller import caller
from workers.cli.outcome import (
    console,
    refused,
    unreachable,
    write_json,
    wrong_usage,
)
from workers.cli.temporal import NotThere, bounded, connected
from workers.control.schedules import (
    Difference,
    Ensured,
    Wanted,
    ensure_schedule,
    make_schedule,
    wanted_schedules,
)
from workers.control.settings import read_settings
from workers.listening import SettingsError
from workers.tables import plain_table
from workers.temporal_connection import (
    TemporalMisconfigured,
    TemporalUnreachable,
    ensure_search_attributes,
)

REGISTER_S: Final = 30.0
"""For the search attributes, which the server lists only when its cache has them."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Listed:
    """One Schedule as Temporal has it; `exists` False = nobody has made it yet."""

    name: str
    identity: str
    exists: bool
    paused: bool = False
    note: str = ""
    every_s: float = 0.0
    last_started: datetime | None = None
    next_at: datetime | None = None
    skipped_overlap: int = 0
    missed_catch_up: int = 0


@dataclass(frozen=True)
class SetUp:
    """What `setup temporal` has done about one Schedule, and how it differs or differed."""

    name: str
    schedule: str
    done: Ensured
    differences: tuple[Difference, ...]


def set_up_temporal(*, correct: bool, as_json: bool) -> None:
    """Search attributes, and the Schedules that are missing; nothing that was paused goes on.

    Where a Schedule differs from the caller's environment (which need not be the worker's) that is
    told, and written only if the caller says `correct`.
    """
    wanted = _wanted()

    async def work() -> list[SetUp]:
        client = await connected()
        try:
            await ensure_search_attributes(client, deadline_s=REGISTER_S)
        except TemporalMisconfigured as error:
            raise refused(str(error)) from error
        except TemporalUnreachable as error:
            raise unreachable(str(error)) from error
        return [await _set_up(client, name, one, correct=correct) for name, one in wanted.items()]

    rows = asyncio.run(work())
    if as_json:
        write_json({"search_attributes": "registered", "schedules": [asdict(row) for row in rows]})
        return
    table = plain_table("SCHEDULE", "ID", "")
    for row in rows:
        table.add_row(*map(escape, (row.name, row.schedule, row.done.value)))
    console().print(table)
    for row in rows:
        for difference in row.differences:
            console().print(escape(_told(row, difference)), soft_wrap=True)
    console().print("the search attributes are registered; see: fleetmend schedules list")


async def _set_up(client: Client, name: str, wanted: Wanted, *, correct: bool) -> SetUp:
    doing = f"setting up {wanted.identity}"
    found = await _asked(make_schedule(client, wanted), doing)
    done = found.done
    if correct and done is Ensured.DIFFERS:
        done = await _asked(ensure_schedule(client, wanted), doing)
    return SetUp(name, wanted.identity, done, found.differences)


def _told(row: SetUp, difference: Difference) -> str:
    of = f"schedule {row.name}: {difference.what} {difference.there}"
    if row.done is Ensured.DIFFERS:
        return f"{of} there, {difference.wanted} by your environment; --correct writes yours"
    return f"{of} before, {difference.wanted} now"


def list_schedules(*, as_json: bool) -> None:
    """Every Schedule of the cluster, as Temporal has it."""
    wanted = _wanted()

    async def work() -> list[Listed]:
        client = await connected()
        return [await _listed(client, name, one) for name, one in wanted.items()]

    listed = asyncio.run(work())
    if as_json:
        write_json({"schedules": listed})
        return
    table = plain_table("SCHEDULE", "STATE", "EVERY", "LAST STARTED", "NEXT", "NOTE")
    for one in listed:
        table.add_row(*map(escape, _cells(one)))
    console().print(table)


def tell_schedule(word: str, name: str, *, reason: str, as_json: bool) -> None:
    """`pause`, `resume` or `trigger` one Schedule."""
    wanted = _wanted()
    one = wanted.get(name)
    if one is None:
        raise wrong_usage(f"there is no schedule {name!r}; they are: {', '.join(wanted)}")
    by = caller(reason)
    note = f"{word} by {by.by}" + (f": {by.reason}" if by.reason else "")

    async def work() -> None:
        client = await connected()
        handle = client.get_schedule_handle(one.identity)
        await _asked(_word(handle, word, note), f"{word} of {one.identity}")

    asyncio.run(work())
    if as_json:
        write_json({"schedule": name, "id": one.identity, "done": word, "note": note})
        return
    said = {
        "pause": "is paused: nothing is started by itself until resume",
        "resume": "goes on",
        "trigger": "was triggered; a run that is open is not doubled",
    }[word]
    console().print(f"schedule {escape(name)} {said}", soft_wrap=True)


async def _word(handle: ScheduleHandle, word: str, note: str) -> None:
    if word == "pause":
        await handle.pause(note=note)
    elif word == "resume":
        await handle.unpause(note=note)
    else:
        await handle.trigger()


def _wanted() -> dict[str, Wanted]:
    """By the short name that people use: the first part of its id."""
    try:
        settings = read_settings()
    except SettingsError as error:
        raise wrong_usage(str(error)) from error
    return {one.identity.split("/", 1)[0]: one for one in wanted_schedules(settings)}


async def _listed(client: Client, name: str, wanted: Wanted) -> Listed:
    handle = client.get_schedule_handle(wanted.identity)
    try:
        found = await bounded(handle.describe(), f"looking at {wanted.identity}")
    except NotThere:
        return Listed(name, wanted.identity, exists=False)
    return _described(name, found)


def _described(name: str, found: ScheduleDescription) -> Listed:
    schedule, past = found.schedule, found.info.recent_actions
    intervals = schedule.spec.intervals
    upcoming = found.info.next_action_times
    return Listed(
        name=name,
        identity=found.id,
        exists=True,
        paused=schedule.state.paused,
        note=schedule.state.note or "",
        every_s=intervals[0].every.total_seconds() if intervals else 0.0,
        last_started=past[-1].started_at if past else None,
        next_at=upcoming[0] if upcoming and not schedule.state.paused else None,
        skipped_overlap=found.info.num_actions_skipped_overlap,
        missed_catch_up=found.info.num_actions_missed_catchup_window,
    )


def _cells(one: Listed) -> tuple[str, ...]:
    if not one.exists:
        return (one.name, "missing", "", "", "", "make it with: fleetmend setup temporal")
    return (
        one.name,
        "paused" if one.paused else "runs",
        f"{one.every_s:g} s",
        _moment(one.last_started),
        _moment(one.next_at),
        one.note,
    )


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "-"


async def _asked(call: Awaitable[Answer], doing: str) -> Answer:
    """As `bounded`; a Schedule that is not there is refused with the remedy."""
    try:
        return await bounded(call, doing)
    except NotThere as error:
        raise refused(
            f"{doing}: there is no such schedule yet; make it with: fleetmend setup temporal"
        ) from error
