"""From a container of the fleetmend image to a command line of this machine.

Pure: owns the entrypoint, the program that runs, and what of a container's life cycle the lab can
play. The variables are `environment`'s; `process` starts what is planned here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import BadContainer
from workers.lab.kubelet.environment import PodPlace, compose_environment, expand, translate

ENTRYPOINT: Final = "fleetmend"
"""Of the image, as deploy/image has it."""


@dataclass(frozen=True)
class LaunchPlan:
    """All that `ProcessContainer.launch` needs."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    termination_log: Path
    falls_back_to_log: bool
    pre_stop_s: float = 0.0
    """Between being told to stop and SIGTERM; a part of the grace."""


def plan_launch(pod: JsonObject, container: JsonObject, place: PodPlace) -> LaunchPlan:
    """What to run for this container.

    Raises:
        BadContainer: a hook or a source of a variable that the lab doesn't know, or one not there.
    """
    name = container["name"]
    termination_log = place.folder / "containers" / name / "termination-log"
    environment = compose_environment(pod, container, place)
    environment.setdefault("FLEETMEND_TERMINATION_LOG", str(termination_log))
    command = container.get("command") or [ENTRYPOINT]
    words = [*command, *(container.get("args") or [])]
    policy = container.get("terminationMessagePolicy", "File")
    return LaunchPlan(
        argv=_program(tuple(expand(translate(w, place.mounts), environment) for w in words)),
        environment=environment,
        folder=place.folder,
        log=place.log_folder / f"{name}.log",
        termination_log=termination_log,
        falls_back_to_log=policy == "FallbackToLogsOnError",
        pre_stop_s=_pre_stop_s(container),
    )


def _program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The image's programs are this interpreter and the release's packages."""
    if argv[0] == ENTRYPOINT:
        return (sys.executable, "-m", "workers.cli", *argv[1:])
    if argv[0] in ("python", "python3"):
        return (sys.executable, *argv[1:])
    return argv


def _pre_stop_s(container: JsonObject) -> float:
    hooks = container.get("lifecycle") or {}
    for hook, action in hooks.items():
        if hook == "stopSignal" or (hook == "preStop" and "sleep" in action):
            continue
        raise BadContainer(
            f"container {container['name']}: lifecycle.{hook} by {', '.join(action)} is not known "
            "to the lab; known: preStop by sleep"
        )
    return float((hooks.get("preStop") or {}).get("sleep", {}).get("seconds", 0))
