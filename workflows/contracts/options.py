"""The one table of timeouts, heartbeats and retries, by step.

Owns every activity option; policy may override a row (`steps:`). Each contract has a row, checked
at import. Pure: no temporalio here, the runtime turns a row into Temporal's own types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

from workflows.contracts import errors, fleet, guard, karpenter, kube, machines, node_tasks
from workflows.model.policy import Policy, PolicyError, StepOptions
from workflows.model.policy_document import read_policy


@dataclass(frozen=True)
class Options:
    """One row.

    `start_to_close` bounds one attempt; `heartbeat` None = the step is too short to need one.
    Retries go on without limit (an outage may last) from `retry_initial` up to `retry_maximum`,
    except for the final types. `waits` = retries are waiting, not failing. `longest` is what policy
    cannot stretch.
    """

    start_to_close: timedelta
    heartbeat: timedelta | None = None
    retry_initial: timedelta = timedelta(seconds=0.2)
    retry_maximum: timedelta = timedelta(seconds=15)
    waits: bool = False
    non_retryable: tuple[str, ...] = errors.FINAL
    longest: timedelta | None = None


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


NOTE_S = 8.0
"""Longest attempt of a step that notes a place; a fresh guard waits this out (design section 6)."""
_CALL = Options(start_to_close=_s(15))
_NOTE = Options(start_to_close=_s(NOTE_S), longest=_s(NOTE_S))
_WAIT = Options(start_to_close=_s(15), retry_initial=_s(20), retry_maximum=_s(20), waits=True)
_POLL = Options(start_to_close=_s(30), retry_initial=_s(2), retry_maximum=_s(10), waits=True)
"""For what no signal of watch tells: NodeClaims, and Nodes of other episodes or none."""

OPTIONS: Mapping[str, Options] = MappingProxyType(
    {
        kube.OPEN_EPISODE.name: _CALL,
        kube.READ_NODE.name: _CALL,
        kube.QUARANTINE.name: _NOTE,
        kube.NOTE_SLOT.name: _NOTE,
        kube.DROP_SLOT.name: _NOTE,
        kube.ASSERT_VETOES.name: _CALL,
        kube.DRAIN.name: Options(start_to_close=_s(31 * 86_400), heartbeat=_s(10)),
        kube.PROVE_REBOOT.name: _CALL,
        kube.AWAIT_REBOOT.name: _WAIT,
        kube.GIVE_BACK.name: _CALL,
        kube.HAND_OVER.name: _CALL,
        kube.AWAIT_PERMIT.name: _WAIT,
        kube.ADMIT_NODE.name: _CALL,
        node_tasks.INVENTORY.name: Options(start_to_close=_s(3900), heartbeat=_s(10)),
        node_tasks.REBOOT.name: Options(start_to_close=_s(3900), heartbeat=_s(10)),
        node_tasks.DIAGNOSE.name: Options(start_to_close=_s(15_600), heartbeat=_s(10)),
        node_tasks.KERNEL_LOG.name: Options(start_to_close=_s(3900), heartbeat=_s(10)),
        karpenter.RESOLVE_CLAIM.name: _CALL,
        karpenter.DELETE_CLAIM.name: _CALL,
        karpenter.READ_CLAIM_END.name: Options(start_to_close=_s(30)),
        karpenter.AWAIT_CLAIM_GONE.name: _POLL,
        karpenter.LOOK_FOR_SUCCESSOR.name: Options(start_to_close=_s(30)),
        karpenter.FIND_SUCCESSOR.name: _POLL,
        machines.RECORD_PHASE.name: _CALL,
        machines.RECORD_BASELINE.name: _CALL,
        guard.ASK_GUARD.name: _CALL,
        guard.RELEASE_PLACE.name: _CALL,
        guard.CLAIM_EPOCH.name: _CALL,
        guard.SURVEY_MARKS.name: Options(start_to_close=_s(60)),
        fleet.PICK_IDLE.name: Options(start_to_close=_s(120)),
        fleet.READ_IDLENESS.name: _CALL,
        guard.SWEEP_CLUSTER.name: Options(start_to_close=_s(600), heartbeat=_s(30)),
    }
)


def read_policy_for_steps(body: object) -> Policy:
    """The policy in a parsed YAML document, its `steps` checked against the table.

    Raises:
        PolicyError: as `read_policy`, and one line for each step that there is not.
    """
    policy = read_policy(body)
    unknown = sorted(set(policy.steps) - set(OPTIONS))
    if unknown:
        known = ", ".join(sorted(OPTIONS))
        raise PolicyError(
            "\n".join(f"steps.{name}: no such step; one of {known}" for name in unknown)
        )
    return policy


def options_of(step: str, overrides: Mapping[str, StepOptions] | None = None) -> Options:
    """The row of a step, with the policy's overrides laid over it.

    Raises:
        KeyError: the step has no row (a defect; a test asserts that each contract has one).
    """
    row = OPTIONS[step]
    override = (overrides or {}).get(step)
    if override is None:
        return row
    start_to_close = _or(override.start_to_close_s, row.start_to_close)
    return replace(
        row,
        start_to_close=min(start_to_close, row.longest or start_to_close),
        heartbeat=_s(override.heartbeat_s) if override.heartbeat_s else row.heartbeat,
        retry_initial=_or(override.retry_initial_s, row.retry_initial),
        retry_maximum=_or(override.retry_maximum_s, row.retry_maximum),
    )


def _or(seconds: float | None, default: timedelta) -> timedelta:
    return default if seconds is None else _s(seconds)
