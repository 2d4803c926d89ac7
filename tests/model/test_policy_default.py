"""The policy files that fleetmend ships: the default says what is built in, the demo's is valid."""

from pathlib import Path

import yaml

from activities.policy_reader import read_policy_file
from workflows.model.policy import Policy

POLICIES = Path(__file__).parents[2] / "deploy" / "policies"


def test_the_default_file_is_the_built_in_policy() -> None:
    assert read_policy_file(POLICIES / "default.yaml") == Policy()


def test_the_default_file_spells_out_every_field() -> None:
    written = yaml.safe_load((POLICIES / "default.yaml").read_text())
    assert _fields(written) == _fields(Policy().model_dump(mode="json"))


def test_the_default_file_tells_the_places_in_their_order() -> None:
    header = (POLICIES / "default.yaml").read_text().partition("pools:")[0]
    places = [
        "ConfigMap `fleetmend-policy`",
        "the file that FLEETMEND_POLICY names",
        "is built in.",
    ]
    assert sorted(places, key=header.index) == places


def test_an_empty_file_is_the_built_in_policy(tmp_path: Path) -> None:
    empty = tmp_path / "policy.yaml"
    empty.write_text("# nothing changed\n")
    assert read_policy_file(empty) == Policy()


def test_the_demo_believes_a_hung_diagnostic_while_it_hangs() -> None:
    """It hangs for 60 s, of which DCGM's period and deadline take up to 30."""
    policy = read_policy_file(POLICIES / "demo.yaml")
    debounce = next(rule.debounce_s for rule in policy.rules if rule.name == "gpu-unknown")
    assert debounce < 20
    pools = {pool.name for pool in policy.pools}
    assert pools == {"training", "inference", "spare", "elastic"}


def _fields(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {p for key, item in value.items() for p in _fields(item, f"{path}.{key}")} or {path}
    if isinstance(value, list):
        return {p for i, item in enumerate(value) for p in _fields(item, f"{path}[{i}]")} or {path}
    return {path}
