"""Where a process serves health and metrics, as its environment says it.

Owns that value, how it is written, and the error that every process raises for a variable that it
cannot use. Which variable, and what stands there by default, is each process's own. Imports nothing
heavy: the agent starts with it.
"""

import re
from dataclasses import dataclass

_LISTEN = re.compile(r"(?P<host>[0-9A-Za-z.:\[\]-]+):(?P<port>[0-9]{1,5})")


class SettingsError(ValueError):
    """A variable holds something that it cannot mean; the message says what it takes."""


@dataclass(frozen=True)
class Listen:
    """Where health and metrics are served; port 0 = any free one, named in the log."""

    host: str
    port: int


def read_listen(variable: str, text: str, default: str) -> Listen | None:
    """`host:port`, or "off".

    Raises:
        SettingsError: it is neither; names `variable`, and `default` as an example.
    """
    if text in ("", "off"):
        return None
    parts = _LISTEN.fullmatch(text)
    if parts is None or int(parts["port"]) > 65535:
        raise SettingsError(
            f'{variable}: {text[:80]!r} is no address; use host:port, such as {default}, or "off"'
        )
    return Listen(parts["host"].strip("[]"), int(parts["port"]))
