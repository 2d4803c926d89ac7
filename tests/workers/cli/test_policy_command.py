"""`fleetmend policy check`: each defect is told with its field, its value and what is allowed."""

from pathlib import Path

import pytest

from activities.policy_reader import MAX_POLICY_BYTES
from tests.harness.processes import fleetmend
from workers.cli.outcome import CommandError, ExitCode
from workers.cli.policy import check

DEFECTS = {
    "unknown field": ("poools: []", ["poools", "no such field", "policy schema"]),
    "values of the chart": (
        "cluster: here\npolicy: {pools: []}\n",
        ["policy: no such field", "looks like values of the chart", "what stands below `policy:`"],
    ),
    "not a mapping": ("- a\n- b", ["expected a mapping", "list"]),
    "no YAML": ("pools: [", ["not YAML", "line 1"]),
    "a pool's name": ("pools: [{name: A_B, selector: {a: b}}]", ["pools.0.name", "'A_B'"]),
    "a share": (
        "pools: [{name: a, selector: {a: b}, budgets: {disruption: 110%}}]",
        ["pools.0.budgets.disruption", '"0%" to "100%"', "'110%'"],
    ),
    "a fault class": ("faults: {gpu-lots: {}}", ["faults.gpu-lots", "gpu-lost"]),
    "a drain way of later": (
        "faults: {gpu-lost: {drain: checkpoint}}",
        ["faults.gpu-lost", "'checkpoint' is not in this release yet", "finish-work"],
    ),
    "a rung of later": (
        "faults: {gpu-lost: {ladder: [reset-gpu, reboot]}}",
        ["faults.gpu-lost", "'reset-gpu' is not in this release yet", "use reboot, replace"],
    ),
    "a negative time": ("timing: {probation_s: -1}", ["timing.probation_s", "-1", "0"]),
    "immediate on unknown": (
        "rules: [{name: r, condition: C, status: Unknown, fault: network, immediate: true}]",
        ["rules.0", "never immediate"],
    ),
    "unknown health that reboots": (
        "faults: {diagnostic-unknown: {drain: none, ladder: [reboot]}}",
        ["diagnostic-unknown", "never evicts, reboots or replaces", "ladder: []"],
    ),
    "a name twice": (
        "pools: [{name: a, selector: {a: b}}, {name: a, selector: {a: c}}]",
        ["'a' is used twice"],
    ),
    "a key twice": (
        "timing: {probation_s: 60}\npools: []\ntiming: {}\n",
        ["key 'timing' stands twice", "lines 1 and 3"],
    ),
    "a key twice further in": (
        "pools:\n- name: a\n  selector: {a: b}\n  name: b\n",
        ["key 'name' stands twice", "lines 2 and 4"],
    ),
    "a selector twice": (
        "pools: [{name: a, selector: {a: b, c: d}}, {name: e, selector: {c: d, a: b}}]",
        ["pools: 'a' and 'e' have the same selector", "give each its own"],
    ),
    "a pool that never has a node": (
        "pools: [{name: a, selector: {a: b}}, {name: e, selector: {a: b, c: d}}]",
        ["pools: 'a' and 'e' overlap", "put 'e' first"],
    ),
}


@pytest.mark.parametrize(("text", "said"), DEFECTS.values(), ids=DEFECTS.keys())
def test_a_defect_is_told_with_field_value_and_remedy(
    text: str, said: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(CommandError) as refusal:
        check(file, as_json=False)
    assert refusal.value.code is ExitCode.REFUSED
    for part in [str(file), *said]:
        assert part in str(refusal.value)


def test_every_defect_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("poools: []\ntiming: {probation_s: -1}\n")
    with pytest.raises(CommandError) as refusal:
        check(file, as_json=False)
    assert len(str(refusal.value).splitlines()) == 2


def test_a_file_that_is_no_policy_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "disk.img"
    file.write_bytes(b"a" * (MAX_POLICY_BYTES + 1))
    with pytest.raises(CommandError, match="is it a policy"):
        check(file, as_json=False)


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    answer = fleetmend(None, "policy", "check", str(tmp_path / "none.yaml"))
    assert answer.code == ExitCode.REFUSED
    assert "none.yaml: cannot be read: No such file" in answer.err
    assert answer.out == ""


def test_json_tells_defects_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("poools: []\n")
    answer = fleetmend(None, "policy", "check", str(file), "--json")
    assert answer.code == ExitCode.REFUSED
    assert answer.json["exit_code"] == 1
    assert "poools" in answer.json["defects"][0]
    assert answer.json["valid"] is False
    assert answer.json["file"] == str(file)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "timing: {probation_s: 1}\n"])
def test_an_empty_file_is_said_to_be_the_built_in_policy(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    check(file, as_json=False)
    assert ("this is the built-in policy" in capsys.readouterr().out) is ("timing" not in text)


def test_the_schema_names_every_top_level_field() -> None:
    answer = fleetmend(None, "policy", "schema")
    assert answer.code == ExitCode.OK
    fields = {"pools", "scope", "rules", "faults", "gate", "timing", "arming_share", "steps"}
    assert set(answer.json["properties"]) == fields
