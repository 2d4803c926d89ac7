"""What a Python program logs, line by line, in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any


def lines_of(code: str, **environment: str) -> list[dict[str, Any]]:
    """The JSON lines that this code writes to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return [json.loads(line) for line in done.stderr.splitlines()]
