"""What the reflectors tell, as values: the border between raw objects and the lookout.

Owns the reading of Nodes, ConfigMaps and GPUMachines where they enter; one that cannot be read is
counted, logged and passed over, and the last good form of it stays. Does not decide. Talks to
`lookout.py` and `current_rules.py`.
"""

import structlog

from activities.kube.client import JsonObject
from workers.watch.current_rules import CurrentRules
from workers.watch.lookout import Lookout
from workers.watch.metrics import Counter, Metrics
from workflows.model.node import BadObject, parse_node

_log = structlog.get_logger(__name__)


class _Counting:
    """Counts what cannot be used."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_bad_object(self, key: str | None, problem: str) -> None:
        """One object was passed over."""
        self._metrics.count(Counter.BAD_OBJECTS)
        _log.warning("object_passed_over", object=key, problem=problem[:300])


class NodeSink(_Counting):
    """Nodes, for the lookout."""

    def __init__(self, lookout: Lookout, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._lookout = lookout

    def on_event(self, _old: JsonObject | None, new: JsonObject) -> None:
        """A Node is there."""
        try:
            view = parse_node(new)
        except BadObject as error:
            self.on_bad_object(str(new["metadata"]["name"]), str(error))
            return
        self._lookout.see_node(view)
        self._metrics.count(Counter.NODE_EVENTS)

    def on_delete(self, old: JsonObject) -> None:
        """A Node is gone."""
        self._lookout.lose_node(str(old["metadata"]["uid"]))


class ConfigSink(_Counting):
    """The ConfigMaps of fleetmend's namespace."""

    def __init__(self, rules: CurrentRules, lookout: Lookout, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._rules = rules
        self._lookout = lookout

    def on_event(self, _old: JsonObject | None, new: JsonObject) -> None:
        """A ConfigMap is there."""
        texts = new.get("data")
        if self._rules.take_config_map(
            str(new["metadata"]["name"]), texts if isinstance(texts, dict) else {}
        ):
            self._lookout.change_rules()

    def on_delete(self, old: JsonObject) -> None:
        """A ConfigMap is gone."""
        if self._rules.take_config_map(str(old["metadata"]["name"]), None):
            self._lookout.change_rules()


class MachineSink(_Counting):
    """Machine records."""

    def __init__(self, rules: CurrentRules, lookout: Lookout, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._rules = rules
        self._lookout = lookout

    def on_event(self, _old: JsonObject | None, new: JsonObject) -> None:
        """A machine record is there."""
        try:
            record = self._rules.take_machine(new)
        except BadObject as error:
            self.on_bad_object(str(new["metadata"]["name"]), str(error))
            return
        self._lookout.see_machine(record)

    def on_delete(self, old: JsonObject) -> None:
        """A machine record is gone."""
        self._rules.forget_machine(str(old["metadata"]["name"]))
