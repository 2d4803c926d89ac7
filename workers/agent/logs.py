"""The agent's log: one JSON object a line on standard error, in the form of the other processes.

Owns the form only. structlog is not used: with what it imports it costs as much memory as the
agent's own code.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_OWN: Final = frozenset(vars(logging.makeLogRecord({})))
"""What every record has; the rest came as fields (`extra=`)."""


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        row |= {key: value for key, value in vars(record).items() if key not in _OWN}
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)[-4000:]
        return json.dumps(row, default=str)


def log_to_stderr(level: str) -> None:
    """Let every logger of this process write there."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(level.upper())
