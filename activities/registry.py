"""All activities of the worker, wired: which method implements which contract.

Owns the one table from contracts to implementations. The types of each activity come from its
contract, checked by mypy here and by a test; failures become Temporal's in `errors.py`. Called once
by `workers/control`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.client import Client

from activities.errors import failures_mapped
from activities.guard import GuardActivities, Place
from activities.karpenter.claims import ClaimActivities
from activities.karpenter.removal import RemovalActivities
from activities.karpenter.succession import SuccessionActivities
from activities.kube.admission import AdmissionActivity
from activities.kube.boots import BootActivities
from activities.kube.client import KubeClient
from activities.kube.drain import DrainActivity
from activities.kube.guard_epoch import GuardEpoch
from activities.kube.marks_survey import MarksSurvey
from activities.kube.node_marks import MarkActivities
from activities.kube.quarantine import QuarantineActivity
from activities.kube.readings import ReadingActivities
from activities.machines.losses import Losses
from activities.machines.records import RecordActivities
from activities.machines.store import MachineStore
from activities.machines.takings import Takings
from activities.node_tasks.runner import NodeTaskActivities
from activities.permit import Authority
from activities.policy_file import PolicySource
from activities.sources import Sources
from activities.sweep import SweepActivity
from activities.validation import ValidationActivities
from workflows.contracts import Contract, fleet, guard, karpenter, kube, machines, node_tasks
from workflows.contracts import Request as Asked
from workflows.contracts import Result as Answered


@dataclass(frozen=True)
class Dependencies:
    """What the activities work with. `kube` and `temporal` are the caller's to close."""

    kube: KubeClient
    temporal: Client
    policies: PolicySource
    cluster: str


def build_activities(deps: Dependencies) -> list[Callable[..., Any]]:
    """One activity for each contract, for `Worker(activities=...)`.

    All but those that only talk to Temporal are sync functions: the worker needs an
    `activity_executor` with at least as many threads as it runs activities at once.
    """
    authority = Authority(deps.kube, deps.policies)
    store = MachineStore(deps.kube)
    return [
        *_cluster_activities(deps, authority, store),
        *_karpenter_activities(deps, authority, store),
        *_record_activities(deps, authority, store),
        *_guard_activities(deps, authority, store),
    ]


def _cluster_activities(
    deps: Dependencies, authority: Authority, store: MachineStore
) -> list[Callable[..., Any]]:
    epochs = GuardEpoch(deps.kube)
    readings = ReadingActivities(deps.kube, authority, deps.policies, store)
    marks = MarkActivities(deps.kube, authority, epochs)
    boots = BootActivities(authority)
    return [
        _sync(kube.OPEN_EPISODE, readings.open_episode),
        _sync(kube.READ_NODE, readings.read_node),
        _sync(kube.QUARANTINE, QuarantineActivity(deps.kube, authority, epochs).quarantine),
        _sync(kube.NOTE_SLOT, marks.note_slot),
        _sync(kube.DROP_SLOT, marks.drop_slot),
        _sync(kube.ASSERT_VETOES, marks.assert_vetoes),
        _sync(kube.DRAIN, DrainActivity(deps.kube, authority).drain),
        _sync(kube.PROVE_REBOOT, boots.prove_reboot),
        _sync(kube.AWAIT_REBOOT, boots.await_reboot),
        _sync(kube.GIVE_BACK, marks.give_back),
        _sync(kube.HAND_OVER, marks.hand_over),
        _sync(kube.AWAIT_PERMIT, boots.await_permit),
        _sync(kube.ADMIT_NODE, AdmissionActivity(deps.kube, authority, deps.policies).admit_node),
    ]


def _karpenter_activities(
    deps: Dependencies, authority: Authority, store: MachineStore
) -> list[Callable[..., Any]]:
    claims = ClaimActivities(deps.kube, authority, Losses(store, deps.policies).of_new)
    removal = RemovalActivities(deps.kube)
    succession = SuccessionActivities(deps.kube, Takings(deps.kube, store))
    return [
        _sync(karpenter.RESOLVE_CLAIM, claims.resolve_claim),
        _sync(karpenter.DELETE_CLAIM, claims.delete_claim),
        _sync(karpenter.READ_CLAIM_END, removal.read_claim_end),
        _sync(karpenter.AWAIT_CLAIM_GONE, removal.await_claim_gone),
        _sync(karpenter.LOOK_FOR_SUCCESSOR, succession.look_for_successor),
        _sync(karpenter.FIND_SUCCESSOR, succession.find_successor),
    ]


def _record_activities(
    deps: Dependencies, authority: Authority, store: MachineStore
) -> list[Callable[..., Any]]:
    tasks = NodeTaskActivities(deps.kube, authority)
    records = RecordActivities(deps.kube, store, deps.policies)
    return [
        _sync(node_tasks.INVENTORY, tasks.inventory),
        _sync(node_tasks.REBOOT, tasks.reboot),
        _sync(node_tasks.DIAGNOSE, tasks.diagnose),
        _sync(node_tasks.KERNEL_LOG, tasks.kernel_log),
        _sync(machines.RECORD_PHASE, records.record_phase),
        _sync(machines.RECORD_BASELINE, records.record_baseline),
    ]


def _guard_activities(
    deps: Dependencies, authority: Authority, store: MachineStore
) -> list[Callable[..., Any]]:
    place = Place(deps.cluster)
    asking = GuardActivities(deps.temporal, place)
    survey = MarksSurvey(deps.kube, authority, deps.policies)
    sources = Sources(deps.kube, survey, store, authority, deps.policies)
    sweep = SweepActivity(sources, deps.temporal, place)
    validation = ValidationActivities(sources, place)
    return [
        _async(guard.ASK_GUARD, asking.ask_guard),
        _async(guard.RELEASE_PLACE, asking.release_place),
        _sync(guard.CLAIM_EPOCH, GuardEpoch(deps.kube).claim),
        _sync(guard.SURVEY_MARKS, survey.survey),
        _async(guard.SWEEP_CLUSTER, sweep.sweep_cluster),
        _sync(fleet.PICK_IDLE, validation.pick_idle),
        _sync(fleet.READ_IDLENESS, validation.read_idleness),
    ]


def _sync(
    contract: Contract[Asked, Answered], perform: Callable[[Asked], Answered]
) -> Callable[[Asked], Answered]:
    """An activity that runs in a thread.

    Cancellation is polled, not thrown: an exception between any two lines could part a write from
    its read-back.
    """

    def carry_out(request: Asked) -> Answered:
        with failures_mapped():
            return perform(request)

    carry_out.__annotations__ = {"request": contract.request, "return": contract.result}
    return activity.defn(name=contract.name, no_thread_cancel_exception=True)(carry_out)


def _async(
    contract: Contract[Asked, Answered], perform: Callable[[Asked], Awaitable[Answered]]
) -> Callable[[Asked], Awaitable[Answered]]:
    """An activity that runs in the worker's event loop."""

    async def carry_out(request: Asked) -> Answered:
        with failures_mapped():
            return await perform(request)

    carry_out.__annotations__ = {"request": contract.request, "return": contract.result}
    return activity.defn(name=contract.name)(carry_out)
