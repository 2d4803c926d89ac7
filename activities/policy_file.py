"""Where the policy stands, and reading it live.

Owns the order of the places (ConfigMap `fleetmend-policy`, key `policy.yaml`; else the file that
FLEETMEND_POLICY names; else the built-in policy) and a memory of at most `FRESH_S`. What stands
there is read by `policy_reader.py`. Used by the permit and by every activity that asks which pool a
node is in.
"""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import NotFound
from activities.kube.own_namespace import OWN_NAMESPACE
from activities.policy_reader import (
    IN_CONFIG_MAP,
    POLICY_CONFIG_MAP,
    POLICY_VARIABLE,
    config_map_text,
    file_text,
    parse_policy,
)
from workflows.model.policy import Policy
from workflows.model.remediation.permit import FRESH_S

NAMESPACE: Final = OWN_NAMESPACE

_log = structlog.get_logger(__name__)


class PolicySource:
    """The policy as it stands now. Thread-safe."""

    def __init__(
        self,
        kube: KubeClient,
        policy_file: Path | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kube = kube
        self._file = policy_file
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._origin_and_text: tuple[str, str] | None = None
        self._policy: Policy | None = None

    @classmethod
    def from_environment(
        cls, kube: KubeClient, environment: Mapping[str, str] = os.environ
    ) -> "PolicySource":
        """A source with the file that FLEETMEND_POLICY names, if it is set."""
        name = environment.get(POLICY_VARIABLE, "")
        return cls(kube, Path(name) if name else None)

    def read(self) -> Policy:
        """The policy, read at most `FRESH_S` ago.

        Raises:
            PolicyError: it cannot be used; the message names the place and each wrong field.
            ApiError: the ConfigMap could not be asked for.
        """
        with self._lock:
            now = self._clock()
            if self._policy and self._read_at is not None and now - self._read_at <= FRESH_S:
                return self._policy
            found = self._text()
            if self._policy is None or found != self._origin_and_text:
                self._policy = parse_policy(found[1], found[0])
                self._origin_and_text = found
                _log.info("policy_read", origin=found[0])
            self._read_at = now
            return self._policy

    def last_good(self) -> Policy:
        """The newest policy that could be used; the built-in one if there was none.

        For what must go on under a broken policy: taking our own marks off again.
        """
        with self._lock:
            return self._policy or Policy()

    def _text(self) -> tuple[str, str]:
        try:
            found = self._kube.get(paths.config_map(NAMESPACE, POLICY_CONFIG_MAP))
        except NotFound:
            return self._file_text()
        return IN_CONFIG_MAP, config_map_text(found.get("data") or {})

    def _file_text(self) -> tuple[str, str]:
        if self._file is None:
            return "built in", ""
        return str(self._file), file_text(self._file)
