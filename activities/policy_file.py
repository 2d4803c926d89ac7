"""Where the policy stands, and reading it live.

Owns the order of the places (ConfigMap `fleetmend-policy`, key `policy.yaml`; else the file that
FLEETMEND_POLICY names; else the built-in policy), the YAML, and a memory of at most `FRESH_S`.
What the policy says is checked in `workflows/model/policy.py`. Used by the permit and by every
activity that asks which pool a node is in.
"""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Final

import structlog
import yaml

from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import NotFound
from workflows.contracts.options import read_policy_for_steps
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.permit import FRESH_S

NAMESPACE: Final = "fleetmend"
POLICY_CONFIG_MAP: Final = "fleetmend-policy"
POLICY_KEY: Final = "policy.yaml"
POLICY_VARIABLE: Final = "FLEETMEND_POLICY"
MAX_POLICY_BYTES: Final = 1 << 20
"""A ConfigMap holds no more than 1 MiB (Kubernetes documentation of ConfigMaps)."""

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
                self._policy = self._parsed(*found)
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
        text = (found.get("data") or {}).get(POLICY_KEY)
        if not isinstance(text, str):
            raise PolicyError(
                f"ConfigMap {POLICY_CONFIG_MAP}: key {POLICY_KEY!r} is missing; add it, or delete "
                "the ConfigMap to use the built-in policy"
            )
        return f"ConfigMap {POLICY_CONFIG_MAP}", text

    def _file_text(self) -> tuple[str, str]:
        if self._file is None:
            return "built in", ""
        origin = f"{POLICY_VARIABLE}={self._file}"
        try:
            return origin, self._file.read_bytes()[: MAX_POLICY_BYTES + 1].decode()
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"{origin}: cannot be read: {error}") from error

    @staticmethod
    def _parsed(origin: str, text: str) -> Policy:
        if len(text) > MAX_POLICY_BYTES:
            raise PolicyError(f"{origin}: longer than {MAX_POLICY_BYTES} bytes")
        try:
            return read_policy_for_steps(yaml.safe_load(text))
        except (yaml.YAMLError, RecursionError) as error:
            raise PolicyError(f"{origin}: no valid YAML: {error}") from error
        except PolicyError as error:
            raise PolicyError(f"{origin}: {error}") from error
