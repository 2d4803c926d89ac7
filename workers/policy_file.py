"""The policy of a process: the file that FLEETMEND_POLICY names, else the built-in one.

Owns finding and reading the file. What stands in it is checked by `workflows.model.policy`; this
module adds the file's name and the line to the message. Read once, at a process's start: a changed
policy is taken up by a restart (what is armed and paused is read live, elsewhere).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from workflows.model.policy import Policy, PolicyError, read_policy

POLICY_VARIABLE: Final = "FLEETMEND_POLICY"
MAX_POLICY_BYTES: Final = 1_000_000
"""A policy of 64 pools and 128 rules is under 100 kB; a ConfigMap holds 1 MiB."""


def load_policy(environment: Mapping[str, str] = os.environ) -> Policy:
    """The policy that this environment asks for; without FLEETMEND_POLICY the built-in one.

    Raises:
        PolicyError: the file cannot be read or used; one line for each defect.
    """
    named = environment.get(POLICY_VARIABLE)
    return read_policy_file(Path(named)) if named else Policy()


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
    except yaml.YAMLError as error:
        raise PolicyError(f"{source}: not YAML: {_one_line(error)}") from error
    try:
        return read_policy(body)
    except PolicyError as error:
        lines = (f"{source}: {line}" for line in str(error).splitlines())
        raise PolicyError("\n".join(lines)) from error


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{getattr(error, 'problem', None) or error}{where}".replace("\n", " ")[:300]
