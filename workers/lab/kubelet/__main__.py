"""The process of the simulated nodes: python -m workers.lab.kubelet --lab DIR.

Owns start and end of the process. The lab's supervisor starts it; SIGTERM ends it in order, and
what it started dies with it in every case.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import structlog

from workers.lab.address import LabNotRunning, read_address
from workers.lab.kubelet.fleet import Fleet
from workers.lab.kubelet.server import serve
from workers.lab.paths import default_lab_directory


def main() -> int:
    """Run until SIGTERM or SIGINT; 2 when there is no lab."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.lab.kubelet", description="The simulated nodes of one lab."
    )
    parser.add_argument("--lab", type=Path, default=None, help="lab directory")
    parser.add_argument(
        "--adopt", action="store_true", help="play the nodes that Karpenter makes, too"
    )
    arguments = parser.parse_args()
    lab = arguments.lab or default_lab_directory()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        asyncio.run(_run(lab, adopts=arguments.adopt))
    except LabNotRunning as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


async def _run(lab: Path, *, adopts: bool) -> None:
    address = read_address(lab)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    fleet = await Fleet.open(address, adopts=adopts)
    server = await serve(fleet, address.fleet_socket)
    try:
        await stopping.wait()
    finally:
        server.close()
        await fleet.close()


if __name__ == "__main__":
    sys.exit(main())
