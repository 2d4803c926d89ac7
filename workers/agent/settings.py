"""What the agent may be told from outside, field by field.

Owns the names of its environment variables and the messages for wrong ones. Read once, at the
start. Which sources run is said by `activities.devices.sources`. Talks to nothing.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.listening import Listen, SettingsError, read_listen

NODE_VARIABLE: Final = "NODE_NAME"
HOST_ROOT_VARIABLE: Final = "FLEETMEND_HOST_ROOT"
ACCOUNT_VARIABLE: Final = "FLEETMEND_SERVICEACCOUNT"
LISTEN_VARIABLE: Final = "FLEETMEND_AGENT_LISTEN"
REFRESH_VARIABLE: Final = "FLEETMEND_AGENT_REFRESH_S"
LEVEL_VARIABLE: Final = "FLEETMEND_LOG_LEVEL"
API_HOST_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
API_PORT_VARIABLE: Final = "KUBERNETES_SERVICE_PORT"

DEFAULT_HOST_ROOT: Final = "/host"
DEFAULT_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a kubelet projects the ServiceAccount's files (Kubernetes 1.36, accessing the API)."""
DEFAULT_LISTEN: Final = "127.0.0.1:9472"
DEFAULT_REFRESH_S: Final = 300.0
LEVELS: Final = ("debug", "info", "warning", "error")

_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class AgentSettings:
    """The process's own settings.

    Attributes:
        node: name of the Node it runs on; the only one it may write.
        host_root: where the host's root is mounted.
        account: folder with `token` and `ca.crt`, both read again whenever they are needed.
        api_host: name or address of the API server.
        api_port: its port.
        listen: where health and metrics are served; None = nowhere. Loopback by default: the
            DaemonSet names the pod's address here, for its probes.
        refresh_s: longest time between two reports, less than the policy's silence (15 min).
        log_level: one of LEVELS.
    """

    node: str
    host_root: Path
    account: Path
    api_host: str
    api_port: int
    listen: Listen | None = None
    refresh_s: float = DEFAULT_REFRESH_S
    log_level: str = "info"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "AgentSettings":
        """The settings as the environment has them.

        Raises:
            SettingsError: names the variable, its value and what is allowed.
        """
        node = environment.get(NODE_VARIABLE, "")
        if not _NODE.fullmatch(node):
            raise SettingsError(
                f"{NODE_VARIABLE}: {node[:80]!r} is no name of a Node; set it by the downward API "
                "(fieldRef spec.nodeName)"
            )
        host = environment.get(API_HOST_VARIABLE, "")
        if not host:
            raise SettingsError(f"{API_HOST_VARIABLE} is not set: the agent runs as a pod")
        return cls(
            node=node,
            host_root=Path(environment.get(HOST_ROOT_VARIABLE, DEFAULT_HOST_ROOT)),
            account=Path(environment.get(ACCOUNT_VARIABLE, DEFAULT_ACCOUNT)),
            api_host=host.strip("[]"),
            api_port=_port(environment.get(API_PORT_VARIABLE, "443")),
            listen=read_listen(
                LISTEN_VARIABLE, environment.get(LISTEN_VARIABLE, DEFAULT_LISTEN), DEFAULT_LISTEN
            ),
            refresh_s=_refresh(environment.get(REFRESH_VARIABLE, str(DEFAULT_REFRESH_S))),
            log_level=_level(environment.get(LEVEL_VARIABLE, "info")),
        )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise SettingsError(f"{API_PORT_VARIABLE}: {text[:80]!r} is no port; use 1 to 65535")
    return int(text)


def _refresh(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise SettingsError(
            f"{REFRESH_VARIABLE}: {text[:80]!r} is not 1 to 600 seconds; a node that is silent "
            "for 15 min counts as unknown"
        )
    return seconds


def _level(text: str) -> str:
    if text not in LEVELS:
        raise SettingsError(f"{LEVEL_VARIABLE}: {text[:80]!r} is none of {', '.join(LEVELS)}")
    return text
