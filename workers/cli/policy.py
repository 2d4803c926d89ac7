"""`fleetmend policy check FILE` and `fleetmend policy schema`.

Owns reading one file and telling all its defects. What a policy may say is checked by
`workflows.model.policy`; this module adds the file's name and, for broken YAML, the line. Where a
running process takes its policy from is `activities.policy_file`'s.
"""

from pathlib import Path
from typing import Final

import yaml

from workers.cli.outcome import refused, write_json, write_lines
from workflows.contracts.options import read_policy_for_steps
from workflows.model.policy import Policy, PolicyError

MAX_POLICY_BYTES: Final = 1_000_000
"""A policy of 64 pools and 128 rules is under 100 kB; a ConfigMap holds 1 MiB."""


def check(path: Path, *, as_json: bool) -> None:
    """`fleetmend policy check FILE`.

    Raises:
        CommandError: the file cannot be used; each defect is a line of the message.
    """
    try:
        policy = read_policy_file(path)
    except PolicyError as error:
        defects = str(error).splitlines()
        raise refused("\n".join(defects), defects=defects) from error
    if as_json:
        write_json({"file": str(path), "valid": True, "policy": policy.model_dump(mode="json")})
        return
    pools = ", ".join(pool.name for pool in policy.pools)
    write_lines([f"{path}: valid; {len(policy.pools)} pools ({pools}), {len(policy.rules)} rules"])


def schema() -> None:
    """`fleetmend policy schema`: the JSON schema of the policy file."""
    write_json(Policy.model_json_schema())


def read_policy_file(path: Path) -> Policy:
    """The policy in a file.

    Raises:
        PolicyError: the file cannot be read or used; each line begins with the file's name.
    """
    try:
        if path.stat().st_size > MAX_POLICY_BYTES:
            raise PolicyError(f"{path}: larger than {MAX_POLICY_BYTES} bytes; is it a policy?")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PolicyError(f"{path}: cannot be read: {reason}") from error
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str) -> Policy:
    """The policy in YAML text; `source` is named in messages.

    Raises:
        PolicyError: one line for each defect: source, field path, value, what is allowed.
    """
    try:
        body = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyError(f"{source}: not YAML: {_one_line(error)}") from error
    try:
        return read_policy_for_steps(body)
    except PolicyError as error:
        lines = (f"{source}: {line}" for line in str(error).splitlines())
        raise PolicyError("\n".join(lines)) from error


def _one_line(error: yaml.YAMLError | RecursionError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{getattr(error, 'problem', None) or error}{where}".replace("\n", " ")[:300]
