"""Logs and traces of every process, set up in one place.

Owns how a line looks (structlog: JSON on stderr, coloured text on a terminal), which level it
needs, and whether spans leave the process. Does not own what is logged: modules ask structlog for
a logger and give facts as fields (node, uid, episode, phase, rung, attempt, xid). Lines of the
standard library's loggers (Temporal's SDK, urllib3) come out in the same form.
Processes call `set_up_telemetry` once; `temporal_connection` takes its interceptors from here.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

import structlog

LEVEL_VARIABLE: Final = "FLEETMEND_LOG_LEVEL"
"""The least level that is written; one of LEVELS."""
OTLP_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Where spans go (OTLP over HTTP); unset = no span is made or sent (OpenTelemetry's own name)."""

NODE, UID, EPISODE, PHASE = "node", "uid", "episode", "phase"
RUNG, ATTEMPT, XID = "rung", "attempt", "xid"
FIELDS: Final = (NODE, UID, EPISODE, PHASE, RUNG, ATTEMPT, XID)
"""Field names that mean the same in every process, in the order in which they are written."""

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
DEFAULT_LEVEL: Final = "info"
_CHATTY: Final = ("urllib3", "asyncio", "opentelemetry.context")
_SDK_FIELDS: Final = {
    "workflow_id": "workflow",
    "activity_type": "step",
    "attempt": ATTEMPT,
}
"""What is kept of the dictionaries that Temporal's loggers attach; the rest repeats itself."""

EventFields = MutableMapping[str, Any]


class TelemetryError(ValueError):
    """A setting of logs or traces is wrong; the message names the variable and what it takes."""


def set_up_telemetry(process: str, environment: Mapping[str, str] = os.environ) -> None:
    """Configure logs and traces of this process, once, before anything is logged.

    Args:
        process: which fleetmend process this is ("worker", "watch"); a field of each line and the
            service name of its spans.
        environment: where the settings are read from.

    Raises:
        TelemetryError: a variable holds something that it cannot mean.
    """
    _set_up_logs(process, _level(environment))
    if environment.get(OTLP_VARIABLE):
        _set_up_traces(process)


def trace_interceptors(environment: Mapping[str, str] = os.environ) -> Sequence[Any]:
    """Interceptors for a Temporal client; workers made with that client inherit them.

    None without an endpoint: spans that go nowhere cost every start and every step.
    """
    if not environment.get(OTLP_VARIABLE):
        return ()
    # Late: this import takes half a second.
    from temporalio.contrib.opentelemetry import TracingInterceptor

    return (TracingInterceptor(),)


def end_telemetry(environment: Mapping[str, str] = os.environ) -> None:
    """Send the spans that are still here; for a process that is about to leave."""
    if not environment.get(OTLP_VARIABLE):
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def _level(environment: Mapping[str, str]) -> int:
    name = environment.get(LEVEL_VARIABLE, DEFAULT_LEVEL).lower()
    if name not in LEVELS:
        raise TelemetryError(
            f"{LEVEL_VARIABLE}: {name[:40]!r} is no level; use one of {', '.join(LEVELS)}"
        )
    return LEVELS[name]


def _set_up_logs(process: str, level: int) -> None:
    def with_process(_: object, __: str, event: EventFields) -> EventFields:
        return {**event, "process": process}

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        with_process,
    ]
    on_terminal = sys.stderr.isatty()
    rendering: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if on_terminal
        else [
            structlog.processors.format_exc_info,
            _in_order,
            structlog.processors.JSONRenderer(default=str),
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _flatten_sdk_fields],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _flatten_sdk_fields(_: object, __: str, event: EventFields) -> EventFields:
    """Temporal's loggers attach a dictionary for each message; a few of its entries are facts."""
    for attached in ("temporal_activity", "temporal_workflow"):
        facts = event.pop(attached, None)
        if isinstance(facts, dict):
            for source, field in _SDK_FIELDS.items():
                if source in facts:
                    event.setdefault(field, facts[source])
    event.pop("__temporal_error_identifier", None)
    return event


def _in_order(_: object, __: str, event: EventFields) -> EventFields:
    first = ("timestamp", "level", "process", "event", *FIELDS)
    ordered = {key: event.pop(key) for key in first if key in event}
    return {**ordered, **event}


def _set_up_traces(process: str) -> None:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: f"fleetmend-{process}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
