"""A refusal is one line with its node; a real failure keeps its traceback."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.fleet import fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from tests.workers.log_lines import lines_of
from workers.control.step_logs import OUTCOMES, REFUSED, facts_of
from workers.lab.address import LabAddress
from workflows.contracts import Effect, errors
from workflows.contracts.kube import Owner, PermitRequest
from workflows.model.identity import NodeRef

FAILS = """
import logging
from temporalio import activity
from activities import errors
from workers.control.step_logs import tell_refusals_in_one_line
from workers.telemetry import set_up_telemetry
set_up_telemetry("worker")
tell_refusals_in_one_line()
tell_refusals_in_one_line()
for error in (errors.node_gone("Node a is gone"), errors.bad_request("no such step")):
    try:
        raise error
    except Exception:
        activity.logger.warning("Completing activity as failed", exc_info=True)
"""


def test_an_outcome_is_one_line_and_a_defect_keeps_its_traceback() -> None:
    outcome, defect = lines_of(FAILS)
    assert (outcome["event"], outcome["level"]) == (REFUSED, "info")
    assert (outcome["refusal"], outcome["problem"]) == (errors.NODE_GONE, "Node a is gone")
    assert "exception" not in outcome
    assert defect["level"] == "warning"
    assert "Traceback" in defect["exception"]


def test_an_outcome_is_left_out_where_only_warnings_are_wanted() -> None:
    (defect,) = lines_of(FAILS, FLEETMEND_LOG_LEVEL="warning")
    assert "no such step" in defect["exception"]


def test_what_no_retry_can_help_is_an_outcome_or_a_defect() -> None:
    assert OUTCOMES | {errors.BAD_REQUEST} == set(errors.FINAL)


def test_a_step_about_the_whole_cluster_names_no_node() -> None:
    assert facts_of(None) == {}
    assert facts_of(object()) == {}


def test_a_step_about_a_node_names_it_and_its_episode() -> None:
    node = NodeRef("a", "u")
    assert facts_of(node) == {"node": "a", "uid": "u"}
    permit = PermitRequest(Owner(node, "e"), Effect.MARK)
    assert facts_of(permit) == {"node": "a", "uid": "u", "episode": "e"}


@pytest.mark.timeout(240)
def test_a_paused_node_is_told_in_one_line_with_its_name(
    lab: LabAddress, cluster: Cluster, nodes: TestNodes, tmp_path: Path
) -> None:
    with fleet_on(lab, cluster, tmp_path, ["told"]) as fleet:
        node = nodes.add("a", "told")
        ref = fleet.ref(node)
        cluster.annotate(node, pause="hands off")
        nodes.inject(node, "gpu-lost")

        def refusals() -> list[dict[str, Any]]:
            # Runs that other tests left open are refused as well.
            return [line for line in fleet.worker.logged(REFUSED) if line.get("node") == node]

        (first, *_) = wait_until(refusals, 60, "a step was refused", saw=fleet.worker.tail)
        assert first["uid"] == ref.uid
        assert first["refusal"] == errors.NOT_PERMITTED
        assert first["problem"]
        assert "exception" not in first
