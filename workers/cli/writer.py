"""Who writes: the Lease of `fleetmend watch`, as a person sees it.

Owns the reading of that Lease and the question whether its holder lives. Clocks of other machines
are not believed: where a renewal looks old (or comes from the future) the Lease is watched for one
term. Electing is `workers/watch/lease.py`'s. Talks to `activities/kube`.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from activities.kube import errors, paths
from activities.kube.client import JsonObject, KubeClient
from activities.kube.errors import printable
from activities.policy_file import NAMESPACE
from workers.cli.episodes import CLUSTER_VARIABLE
from workers.watch.lease import CLUSTER_NOTE, LEASE_NAME, RENEW_S, TERM_S

CLOCKS_DIFFER_S: Final = 600.0
"""What is older than this is old by any clock that a cluster works with: not watched."""
LOOK_S: Final = RENEW_S / 2
MAX_HOLDER: Final = 128


@dataclass(frozen=True)
class Writer:
    """Which watch writes.

    `holder` "" = none; `renewed_s_ago` by this machine's clock, None = never; `is_writing` None =
    cannot be told. `problem` is what a person must know; "" = all is well.
    """

    holder: str
    renewed_s_ago: float | None
    is_writing: bool | None
    problem: str


def read_writer(
    kube: KubeClient, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Writer:
    """The present writer. May take `TERM_S` if it looks dead.

    Raises:
        ApiError: the cluster did not answer; a missing right is told in `problem`.
    """
    path = paths.lease(NAMESPACE, LEASE_NAME)
    try:
        lease = kube.get(path)
        first = _version(lease)
        age_s = _age_s(lease, now())
        until = time.monotonic() + TERM_S
        while _is_odd(age_s) and _version(lease) == first and time.monotonic() < until:
            time.sleep(LOOK_S)
            lease = kube.get(path)
    except errors.NotFound:
        return Writer("", None, is_writing=False, problem=_nobody("it has never run here"))
    except errors.Forbidden:
        return Writer("", None, is_writing=None, problem=_UNSEEN)
    holder = printable(str(_spec(lease).get("holderIdentity") or ""), MAX_HOLDER)
    if not holder:
        return Writer("", age_s, is_writing=False, problem=_nobody("the last one has ended"))
    lives = _version(lease) != first or (age_s is not None and abs(age_s) <= TERM_S)
    if lives:
        return Writer(holder, _age_s(lease, now()), is_writing=True, problem=_other_cluster(lease))
    ago = "never" if age_s is None else f"last {age_s:.0f} s ago"
    return Writer(holder, age_s, is_writing=False, problem=_nobody(f"{holder} renewed {ago}"))


_UNSEEN: Final = (
    f"whether watch runs cannot be told: you may not read Lease {NAMESPACE}/{LEASE_NAME} "
    "(deploy/chart: values operators)"
)


def _nobody(why: str) -> str:
    return (
        f"nobody watches ({why}): no node is quarantined at once and no fault is reported. "
        "Next: start fleetmend watch"
    )


def _is_odd(age_s: float | None) -> bool:
    return age_s is not None and TERM_S < abs(age_s) <= CLOCKS_DIFFER_S


def _other_cluster(lease: JsonObject) -> str:
    """What a person must know whose commands look for another cluster's workflows; "" = nothing."""
    theirs = str((lease["metadata"].get("annotations") or {}).get(CLUSTER_NOTE, ""))
    ours = os.environ.get(CLUSTER_VARIABLE, "")
    if not theirs or not ours or theirs == ours:
        return ""
    return (
        f"{CLUSTER_VARIABLE} is {printable(ours, 64)!r}, and watch works here as "
        f"{printable(theirs, 64)!r}: phases, stories and answers are looked for in another cluster. "
        f"Next: export {CLUSTER_VARIABLE}={printable(theirs, 64)}"
    )


def _age_s(lease: JsonObject, now: datetime) -> float | None:
    try:
        renewed = datetime.fromisoformat(str(_spec(lease)["renewTime"]))
        return round((now - renewed).total_seconds(), 1)
    except (KeyError, ValueError, TypeError):
        return None


def _spec(lease: JsonObject) -> dict[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _version(lease: JsonObject) -> str:
    return str((lease.get("metadata") or {}).get("resourceVersion") or "")
