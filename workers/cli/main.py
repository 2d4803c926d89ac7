"""`fleetmend`: the entry point, and the short way for what runs on nodes.

Owns the check that our packages are ours, and the start of agent and node tasks without the rest
of the command line: an agent is small, and a pod on a sick node runs against a deadline. Every
other command is `commands.py`'s.
"""

import importlib
import sys

from activities.kube.own_namespace import namespace_problem
from workers.cli import patience  # noqa: F401 - where there is no /proc, its clock starts here
from workers.cli.shadowing import shadowed


def main() -> None:
    """Run the command line of this process."""
    problem = shadowed() or namespace_problem()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    arguments = sys.argv[1:]
    if arguments[:1] == ["node-task"] and len(arguments) == 2 and arguments[1] != "--help":
        sys.exit(run_node_task(arguments[1]))
    if arguments == ["agent"]:
        sys.exit(run_agent())
    commands = importlib.import_module("workers.cli.commands")
    commands.run_app(arguments)


def run_agent() -> int:
    """Run this node's agent until it is ended; its exit code."""
    module = importlib.import_module("workers.agent.main")
    code: int = module.main()
    return code


def run_node_task(kind: str) -> int:
    """Do one node-local job; its exit code."""
    module = importlib.import_module("workers.node_task.main")
    code: int = module.main(kind)
    return code
