"""A held episode: what is asked, and which answers do something."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import Processes, fleetmend
from tests.harness.waiting import wait_until
from tests.workers.cli.conftest import POOL, under_policy
from workers.cli.next_steps import answers_of
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module", autouse=True)
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Unknown health is held soon: it waits a second for its recovery, and repairs nothing."""
    hasty = {"drain": "none", "ladder": [], "recovery_wait_s": 1}
    with under_policy(tmp_path_factory, hasty) as path:
        yield path


def test_a_held_node_says_what_is_asked_and_what_each_answer_does(
    lab: LabAddress, cluster: Cluster, nodes: TestNodes, started: Processes
) -> None:
    """Seen: four words to choose from, of which one did nothing, and none was explained."""
    cluster.arm(POOL)
    started.watch()
    started.worker()
    node = nodes.add("a", POOL)
    nodes.inject(node, "unknown")
    try:

        def asked() -> Any:
            """The question comes first, then why, then the list of runs knows it."""
            told = fleetmend(lab, "node", node, "--json").json
            return told["question"] and told["node"]["detail"] and told

        told = wait_until(asked, 90, f"{node} is held", saw=started.tails)
        question = told["question"]
        assert list(told["answers"]) == ["resume", "deny", "retire"]
        assert told["asks"].startswith(f"Question {question}. ")
        shown = fleetmend(lab, "node", node).out
        lines = [line.strip() for line in shown.splitlines()]
        assert f"fleetmend resume {node} = the gate again, then what it calls for" in lines
        assert f"fleetmend retire {node} = drain and hand over" in lines
        assert "fleetmend approve" not in shown
        (head,) = [line for line in lines if line.startswith("it waits for a person")]
        assert f"(question {question}): {told['node']['detail']}" in head
        answer = fleetmend(lab, "approve", node)
        assert answer.code == ExitCode.REFUSED
        assert "approve would do nothing here; it takes resume, deny, retire" in answer.err
        assert fleetmend(lab, "deny", node).code == ExitCode.OK
        assert fleetmend(lab, "retire", node).code == ExitCode.OK

        def closed() -> object:
            return fleetmend(lab, "node", node, "--json").json["last_run"]

        # An open run would keep its places in the budgets from whoever comes next.
        wait_until(closed, 60, "its run has closed", saw=started.tails)
    finally:
        cluster.disarm(POOL)


def test_answers_are_read_from_the_question_as_it_is_asked() -> None:
    asks = (
        "Question ep-1-q2. resume = examine it again; approve = drain again, then reboot; "
        "kubectl taint node NAME a/b:NoSchedule- = let work in"
    )
    assert answers_of(asks, "gpu-0") == {
        "resume": "examine it again",
        "approve": "drain again, then reboot",
        "kubectl taint node gpu-0 a/b:NoSchedule-": "let work in",
    }
    assert answers_of("", "gpu-0") == {}
