"""What people have set, as it is right now: policy, arming and pauses, machine records.

Owns the reading of the ConfigMaps and GPUMachines that the reflectors deliver, and of the policy
file. A policy that is wrong never becomes the built-in one: the last good one stays, and without
one nothing is judged (fail closed). The text of a policy is read by `activities/policy_reader.py`. Does not judge. Talks
to `model`.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from activities.policy_reader import (
    IN_CONFIG_MAP,
    POLICY_CONFIG_MAP,
    config_map_text,
    file_text,
    parse_policy,
)
from workers.watch.facts import told_conditions
from workers.watch.machine import MachineRecord, parse_machine
from workflows.model.identity import machine_id
from workflows.model.node import NodeView
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.arming import ARMING_CONFIG_MAP, Arming, parse_arming

_log = structlog.get_logger(__name__)


@dataclass
class CurrentRules:
    """The rules in force. `policy` None = there is no usable one: nothing is judged."""

    fallback: Policy
    """Used while no ConfigMap holds a policy: the file's, or the built-in one."""
    policy: Policy | None = None
    arming: Arming = field(default_factory=Arming)
    told: frozenset[str] = frozenset()
    """Condition types that episodes are told about."""
    policy_problem: str = ""
    machines: dict[str, MachineRecord] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """File and ConfigMap are seen by two threads."""
    _has_map: bool = False
    _is_from_map: bool = False
    """The policy in force, or the one that was when the ConfigMap broke, stood in a ConfigMap."""
    _file_text: str | None = None
    _file_problem: str = ""

    def __post_init__(self) -> None:
        self._use(self.fallback)

    def machine_of(self, node: NodeView) -> MachineRecord | None:
        """The record of the machine that this Node is."""
        return self.machines.get(machine_id(node.system_uuid, node.provider_id, node.uid))

    def take_config_map(self, name: str, text_by_key: Mapping[str, str] | None) -> bool:
        """A ConfigMap as it is now (None = it is gone); True if the rules changed."""
        if name == ARMING_CONFIG_MAP:
            return self._take_arming(text_by_key)
        if name == POLICY_CONFIG_MAP:
            with self._lock:
                return self._take_policy(text_by_key)
        return False

    def take_file(self, path: Path) -> bool:
        """The policy file as it is now; True if the rules changed. Asked again and again."""
        text, policy, problem = None, self.fallback, ""
        try:
            text = file_text(path)
            if text == self._file_text:
                return False
            policy = parse_policy(text, str(path))
        except PolicyError as error:
            problem = str(error)
        self._file_text = text
        if problem and problem != self._file_problem:
            _log.error("policy_unusable", file=str(path), problem=problem[:2000])
        elif self._file_problem and not problem:
            _log.info("policy_read", origin=str(path))
        self._file_problem = problem
        with self._lock:
            self.fallback = policy
            return not self._has_map and self._use(policy)

    def take_machine(self, body: Any) -> MachineRecord:
        """A machine record as it is now.

        Raises:
            BadObject: it cannot be read; the last one stays.
        """
        record = parse_machine(body)
        self.machines[record.name] = record
        return record

    def forget_machine(self, name: str) -> None:
        """A machine record is gone."""
        self.machines.pop(name, None)

    def _take_arming(self, text_by_key: Mapping[str, str] | None) -> bool:
        arming = parse_arming(text_by_key)
        if arming == self.arming:
            return False
        self.arming = arming
        if arming.problem:
            _log.error("arming_unreadable", problem=arming.problem)
        else:
            _log.info(
                "arming_changed",
                armed=[entry.scope for entry in arming.armed],
                paused=[entry.scope for entry in arming.paused],
            )
        return True

    def _take_policy(self, text_by_key: Mapping[str, str] | None) -> bool:
        self._has_map = text_by_key is not None
        if text_by_key is None:
            self.policy_problem, self._is_from_map = "", False
            return self._use(self.fallback)
        try:
            policy = parse_policy(config_map_text(text_by_key), IN_CONFIG_MAP)
        except PolicyError as error:
            if str(error) != self.policy_problem:
                _log.error(
                    "policy_unusable", config_map=POLICY_CONFIG_MAP, problem=str(error)[:2000]
                )
            self.policy_problem = str(error)
            if not self._is_from_map:
                # The first we read of it: the built-in policy is not what they meant.
                self.policy = None
            return False
        self.policy_problem, self._is_from_map = "", True
        return self._use(policy)

    def _use(self, policy: Policy) -> bool:
        if policy == self.policy:
            return False
        self.policy = policy
        self.told = told_conditions(policy)
        return True
