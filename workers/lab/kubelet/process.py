"""A container of the fleetmend image: a real subprocess of this machine.

Owns the translation of a container's specification into argument list, environment and files, the
subprocess itself, its bounded log and its termination message. Does not fetch tokens (`token`) and
writes no pod status (`pod_worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.lab.controlplane.tether import tether
from workers.lab.devices.devices import KMSG_VARIABLE
from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import Exit, now, read_termination_message

FLEETMEND_IMAGE: Final = "fleetmend:lab"
LOG_BYTES: Final = 1024 * 1024
"""A pod's log beyond it is dropped, with a note; a kubelet would rotate at 10 MiB."""
FALLBACK_LOG_BYTES: Final = 2048
"""Of the log's end for FallbackToLogsOnError, as in the Kubernetes API's documentation."""

_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")


class BadContainer(Exception):
    """The specification asks for what the lab's kubelet cannot do; the message says what."""


@dataclass(frozen=True)
class PodPlace:
    """Where a pod lives on this machine."""

    folder: Path
    log_folder: Path
    host_root: Path
    programs: Path
    node_name: str
    api_host: str
    api_port: str
    service_account: Path | None
    """Folder with token, ca.crt and namespace; None when the pod has no token."""
    kubeconfig: Path | None
    pod_ip: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Environment by which programs find the machine's devices; empty where it has none."""


@dataclass(frozen=True)
class LaunchPlan:
    """All that `ProcessContainer.launch` needs."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    termination_log: Path
    falls_back_to_log: bool


def plan_launch(pod: JsonObject, container: JsonObject, place: PodPlace) -> LaunchPlan:
    """What to run for this container.

    Raises:
        BadContainer: no command, or an environment source that the lab doesn't know.
    """
    name = container["name"]
    termination_log = place.folder / "containers" / name / "termination-log"
    environment = _base_environment(place)
    environment["FLEETMEND_LAB_POD"] = (
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} {pod['metadata']['uid']}"
    )
    environment["FLEETMEND_TERMINATION_LOG"] = str(termination_log)
    if _mounts_host_root(pod, container):
        environment["FLEETMEND_HOST_ROOT"] = str(place.host_root)
        environment |= place.devices
        if KMSG_VARIABLE in place.devices:
            # Its own: each opening of the real kernel log has a place of its own.
            environment[KMSG_VARIABLE] = str(place.folder / f"kmsg-{name}")
    for variable in container.get("env") or []:
        environment[variable["name"]] = _value(pod, variable, place, environment)
    if container.get("envFrom"):
        raise BadContainer(f"container {name}: envFrom is not known to the lab; use env")
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not words:
        raise BadContainer(f"container {name}: {FLEETMEND_IMAGE} has no entrypoint; give a command")
    policy = container.get("terminationMessagePolicy", "File")
    return LaunchPlan(
        argv=_program(tuple(_expand(word, environment) for word in words)),
        environment=environment,
        folder=place.folder,
        log=place.log_folder / f"{name}.log",
        termination_log=termination_log,
        falls_back_to_log=policy == "FallbackToLogsOnError",
    )


def _program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The image's programs are this interpreter and this checkout."""
    if argv[0] == "fleetmend":
        return (sys.executable, "-m", "workers.cli", *argv[1:])
    if argv[0] in ("python", "python3"):
        return (sys.executable, *argv[1:])
    return argv


def _base_environment(place: PodPlace) -> dict[str, str]:
    """Nothing of the fleet's own environment but the search paths: it holds the admin's rights."""
    environment = {
        "PATH": f"{place.programs}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(place.folder),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "KUBERNETES_SERVICE_HOST": place.api_host,
        "KUBERNETES_SERVICE_PORT": place.api_port,
        "HOSTNAME": place.node_name,
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    if place.service_account is not None:
        environment["FLEETMEND_SERVICEACCOUNT"] = str(place.service_account)
    if place.kubeconfig is not None:
        environment["KUBECONFIG"] = str(place.kubeconfig)
    return environment


def _mounts_host_root(pod: JsonObject, container: JsonObject) -> bool:
    roots = {
        volume["name"]
        for volume in pod["spec"].get("volumes") or []
        if (volume.get("hostPath") or {}).get("path") == "/"
    }
    return any(mount["name"] in roots for mount in container.get("volumeMounts") or [])


def _value(
    pod: JsonObject, variable: JsonObject, place: PodPlace, environment: Mapping[str, str]
) -> str:
    source = variable.get("valueFrom")
    if source is None:
        return _expand(variable.get("value", ""), environment)
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    known = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": place.node_name,
        "status.podIP": place.pod_ip,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
    }
    if path not in known:
        asked = path or ", ".join(source)
        raise BadContainer(
            f"env {variable['name']}: {asked} is not known to the lab; known: {', '.join(known)}"
        )
    return str(known[path])


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) as a kubelet expands it: unknown names stay, $$ is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else environment.get(name, match.group(0))

    return _REFERENCE.sub(replace, text)


class ProcessContainer:
    """A subprocess in its own process group; it dies with the fleet's process."""

    def __init__(
        self, plan: LaunchPlan, process: asyncio.subprocess.Process, output: asyncio.StreamReader
    ) -> None:
        self.started_at = now()
        self.done: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._plan = plan
        self._process = process
        self._output = output
        self._watcher = asyncio.create_task(self._follow())

    @classmethod
    async def launch(cls, plan: LaunchPlan) -> ProcessContainer:
        """Start the process.

        Raises:
            BadContainer: the program is not there or may not be run.
        """
        plan.termination_log.parent.mkdir(parents=True, exist_ok=True)
        plan.termination_log.write_bytes(b"")
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        # A pipe of our own: with asyncio's, `wait` would not return while a child of the container
        # still holds the writing end (Python 3.11).
        reading, writing = os.pipe()
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *plan.argv,
                cwd=plan.folder,
                env=dict(plan.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tether(os.getpid()),
            )
        except OSError as error:
            pipe.close()
            raise BadContainer(f"cannot run {plan.argv[0]}: {error}") from error
        finally:
            os.close(writing)
        return cls(plan, process, output)

    def stop(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        timer = asyncio.get_running_loop().call_later(grace_s, self.kill)
        self.done.add_done_callback(lambda _: timer.cancel())

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def termination_message(self) -> str:
        return read_termination_message(self._plan.termination_log)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _follow(self) -> None:
        """Keep the log, then tell how it ended."""
        logging = asyncio.create_task(self._keep_log())
        status = await self._process.wait()
        # What the container left behind goes with it, as with a container's PID namespace; that
        # also closes the log's pipe.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await logging
        code = status if status >= 0 else 128 - status
        message = self.termination_message()
        if code != 0 and not message and self._plan.falls_back_to_log:
            message = self._log_tail()
        reason = "Completed" if code == 0 else "Error"
        self.done.set_result(Exit(code, reason, message, self.started_at, now()))

    async def _keep_log(self) -> None:
        left = LOG_BYTES
        with self._plan.log.open("ab") as log:
            while chunk := await self._output.read(65_536):
                log.write(chunk[:left])
                log.flush()
                if 0 < left <= len(chunk):
                    log.write(b"\n[lab: the log ends here, its bound is reached]\n")
                left = max(0, left - len(chunk))

    def _log_tail(self) -> str:
        try:
            raw = self._plan.log.read_bytes()
        except OSError:
            return ""
        return raw[-FALLBACK_LOG_BYTES:].decode("utf-8", "replace")
