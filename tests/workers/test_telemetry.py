"""Logs have one form, whoever writes; spans of one episode are one trace."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.harness.cluster import Cluster
from tests.harness.fleet import fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from tests.workers.log_lines import lines_of
from workers.lab.address import LabAddress
from workers.telemetry import LEVEL_VARIABLE, TelemetryError, set_up_telemetry, trace_interceptors

LINE = """
import logging, structlog
from workers.telemetry import set_up_telemetry
set_up_telemetry("worker")
structlog.get_logger("a").info("rebooted", rung="reboot", node="gpu-1", other=1)
logging.getLogger("temporalio.x").warning(
    "slow", extra={"temporal_activity": {"activity_type": "drain", "attempt": 3, "noise": 1}}
)
"""


def test_every_line_is_json_with_the_same_field_names() -> None:
    ours, theirs = lines_of(LINE)
    assert list(ours)[:6] == ["timestamp", "level", "process", "event", "node", "rung"]
    assert (ours["event"], ours["node"], ours["rung"]) == ("rebooted", "gpu-1", "reboot")
    assert (theirs["event"], theirs["step"], theirs["attempt"]) == ("slow", "drain", 3)
    assert "noise" not in theirs


def test_the_level_leaves_out_what_is_below() -> None:
    assert [line["level"] for line in lines_of(LINE, **{LEVEL_VARIABLE: "warning"})] == ["warning"]


def test_a_wrong_level_is_told() -> None:
    with pytest.raises(TelemetryError, match=r"FLEETMEND_LOG_LEVEL: 'loud' is no level"):
        set_up_telemetry("worker", {LEVEL_VARIABLE: "loud"})


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert trace_interceptors({}) == ()


class Spans:
    """A collector that only keeps what it gets: the exporter on the other side is the real one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        spans = self.seen

        class Collect(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                request = ExportTraceServiceRequest.FromString(self.rfile.read(length))
                for resource in request.resource_spans:
                    service = next(
                        (
                            a.value.string_value
                            for a in resource.resource.attributes
                            if a.key == "service.name"
                        ),
                        "",
                    )
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            spans.append((span.trace_id.hex(), service, span.name))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Collect)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self, trace: str) -> set[tuple[str, str]]:
        """(service, span) of one trace."""
        return {(service, name) for of, service, name in self.seen if of == trace}


@pytest.fixture
def spans() -> Iterator[Spans]:
    own = Spans()
    yield own
    own.close()


@pytest.mark.timeout(240)
def test_client_workflow_and_activities_are_one_trace(
    lab: LabAddress,
    cluster: Cluster,
    nodes: TestNodes,
    spans: Spans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", spans.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    with fleet_on(lab, cluster, tmp_path, ["traced"]) as fleet:
        node = nodes.add("a", "traced")
        nodes.inject(node, "gpu-lost")

        def whole_traces() -> list[set[tuple[str, str]]]:
            traces = {trace for trace, _, _ in spans.seen}
            return [names for names in map(spans.names, traces) if is_whole(names)]

        wait_until(
            whole_traces, 60, "one trace holds all", saw=lambda: (spans.seen, fleet.worker.tail())
        )


def is_whole(names: set[tuple[str, str]]) -> bool:
    """From watch's signal to the run to a step of it."""
    return (
        any(s == "fleetmend-watch" and "RemediateNode" in n for s, n in names)
        and ("fleetmend-worker", "RunWorkflow:RemediateNode") in names
        and ("fleetmend-worker", "RunActivity:open_episode") in names
    )
