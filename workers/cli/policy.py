"""`fleetmend policy check FILE` and `fleetmend policy schema`.

Owns what is said of one file: that it is valid, or each of its defects. It is read as a running
process reads its own (`activities.policy_reader`); which file that is, is `activities.policy_file`'s.
"""

from pathlib import Path
from typing import Final

from activities.policy_reader import read_policy_file
from workers.cli.outcome import refused, write_json, write_lines
from workflows.model.policy import Policy, PolicyError

CHART_FIELD: Final = "policy"
"""Under this name the chart's values (deploy/chart/values.yaml) hold the policy."""


def check(path: Path, *, as_json: bool) -> None:
    """`fleetmend policy check FILE`.

    Raises:
        CommandError: the file cannot be used; each defect is a line of the message.
    """
    try:
        policy = read_policy_file(path)
    except PolicyError as error:
        defects = [_explained(line, path) for line in str(error).splitlines()]
        facts = {"file": str(path), "valid": False, "defects": defects}
        raise refused("\n".join(defects), **facts) from error
    is_built_in = policy == Policy()
    if as_json:
        facts = {"file": str(path), "valid": True, "is_built_in": is_built_in}
        write_json({**facts, "policy": policy.model_dump(mode="json")})
        return
    pools = ", ".join(pool.name for pool in policy.pools)
    line = f"{path}: valid; {len(policy.pools)} pools ({pools}), {len(policy.rules)} rules"
    # An empty file too: it is valid, and not what somebody who forgot to fill it means.
    write_lines([line + ("; this is the built-in policy" if is_built_in else "")])


def _explained(defect: str, path: Path) -> str:
    """The defect, and what it comes from if the file is not a policy but contains one."""
    if not defect.startswith(f"{path}: {CHART_FIELD}: no such field"):
        return defect
    return (
        f"{defect}; this looks like values of the chart: give it what stands below `{CHART_FIELD}:`"
    )


def schema() -> None:
    """`fleetmend policy schema`: the JSON schema of the policy file."""
    write_json(Policy.model_json_schema())
