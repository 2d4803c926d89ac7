"""A container of the fleetmend image: a real subprocess of this machine.

Owns the subprocess, its bounded log and its termination message. What it runs is planned elsewhere
(`launch_plan`), and the pod's status is `pod_worker`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

from workers.lab.controlplane.tether import tether
from workers.lab.kubelet.container import BadContainer, Exit, now, read_termination_message
from workers.lab.kubelet.launch_plan import LaunchPlan

LOG_BYTES: Final = 1024 * 1024
"""A pod's log beyond it is dropped, with a note; a kubelet would rotate at 10 MiB."""
FALLBACK_LOG_BYTES: Final = 2048
"""Of the log's end for FallbackToLogsOnError, as in the Kubernetes API's documentation."""


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
        loop = asyncio.get_running_loop()
        asking = loop.call_later(self._plan.pre_stop_s, self._signal, signal.SIGTERM)
        ending = loop.call_later(grace_s, self.kill)
        self.done.add_done_callback(lambda _: asking.cancel())
        self.done.add_done_callback(lambda _: ending.cancel())

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
