"""What the watch process may be told from outside, field by field.

Owns the names of its environment variables and the messages for wrong ones. Read once, at the
start; what people change while it runs (arming, pauses, policy) stands in ConfigMaps and is
`current_rules.py`'s. Talks to nothing.
"""

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.kube.own_namespace import OWN_NAMESPACE
from workers.listening import Listen, SettingsError, read_listen

CLUSTER_VARIABLE = "FLEETMEND_CLUSTER"
POLICY_VARIABLE = "FLEETMEND_POLICY"
LISTEN_VARIABLE = "FLEETMEND_WATCH_LISTEN"
DEFAULT_LISTEN = "127.0.0.1:9471"

_CLUSTER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class WatchSettings:
    """The process's own settings.

    Attributes:
        cluster: the cluster's name in workflow ids; two clusters on one Temporal differ in it.
        namespace: where the Lease and the ConfigMaps of fleetmend are.
        policy_file: used while there is no ConfigMap `fleetmend-policy`; None = the built-in one.
        listen: where health and metrics are served; None = nowhere. Loopback by default: a
            Deployment names the pod's address here, for its probes.
        identity: this replica's name in the Lease; another one at each start.
    """

    cluster: str
    namespace: str = OWN_NAMESPACE
    policy_file: Path | None = None
    listen: Listen | None = field(
        default_factory=lambda: read_listen(LISTEN_VARIABLE, DEFAULT_LISTEN, DEFAULT_LISTEN)
    )
    identity: str = field(default_factory=_identity)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "WatchSettings":
        """The settings as the environment has them.

        Raises:
            SettingsError: names the variable, its value and what is allowed.
        """
        cluster = environment.get(CLUSTER_VARIABLE, "")
        if not _CLUSTER.fullmatch(cluster):
            raise SettingsError(
                f"{CLUSTER_VARIABLE}: {cluster[:80]!r} names no cluster; set it to 1 to 63 of "
                "A-Z a-z 0-9 . _ - (it becomes part of every workflow id, so never change it)"
            )
        policy = environment.get(POLICY_VARIABLE, "")
        return cls(
            cluster=cluster,
            policy_file=Path(policy) if policy else None,
            listen=read_listen(
                LISTEN_VARIABLE, environment.get(LISTEN_VARIABLE, DEFAULT_LISTEN), DEFAULT_LISTEN
            ),
        )
