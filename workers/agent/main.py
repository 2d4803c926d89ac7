"""The program `fleetmend agent`: its settings, its sources, its exit code.

Owns the start and what is said when it fails. Imports neither `kubernetes` nor `temporalio` nor
pydantic: with all its children and 8 GPUs an agent takes at most 64 MiB of a node.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from workers.agent.boot import NoBootId
from workers.agent.children import Source
from workers.agent.logs import log_to_stderr
from workers.agent.process import Agent, Surroundings
from workers.agent.settings import AgentSettings

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_log = logging.getLogger(__name__)


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Run the agent of this node; its exit code: 0 ended by SIGTERM, 2 wrongly set up."""
    try:
        settings = AgentSettings.from_environment(environment)
        # Late: the sources that a test plays need none of these libraries.
        from activities.devices.sources import sources  # noqa: PLC0415 - as the line above says

        found = sources(settings.host_root, environment)
    except ValueError as error:
        return _refuse(str(error), EXIT_USAGE)
    return run(settings, found)


def run(
    settings: AgentSettings, sources: Sequence[Source], surroundings: Surroundings | None = None
) -> int:
    """Run an agent over these sources until SIGTERM; the exit code."""
    log_to_stderr(settings.log_level)
    try:
        asyncio.run(Agent(settings, sources, surroundings).run())
    except NoBootId as error:
        return _refuse(str(error), EXIT_USAGE)
    except OSError as error:
        _log.error("agent_failed", exc_info=True)
        return _refuse(str(error), EXIT_FAILED)
    return 0


def _refuse(message: str, code: int) -> int:
    print(f"fleetmend agent: {message}", file=sys.stderr)  # noqa: T201 - the pod's log
    return code
