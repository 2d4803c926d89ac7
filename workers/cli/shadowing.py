"""Whether `workflows`, `activities` and `workers` are fleetmend's own packages.

Owns one check at the start of every command: other distributions on PyPI use the same top-level
names, and the one that was installed last, or stands first on the path, wins. Imports nothing of
fleetmend, so that it can tell.
"""

import importlib.util
import sys
from pathlib import Path

OWN_PACKAGES = ("workflows", "activities", "workers")


def shadowed() -> str:
    """Says which package comes from elsewhere, and what to do; "" = all are ours."""
    home = Path(__file__).resolve().parents[2]
    for name in OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != home / name:
            where = found or "nowhere"
            return (
                f"the package {name!r} of fleetmend is shadowed: it is found at {where}, not at "
                f"{home / name}. Another distribution uses the same name, or stands before it on "
                f"the path ({sys.executable}). Next: run fleetmend from a virtual environment of "
                "its own, or from its image"
            )
    return ""
