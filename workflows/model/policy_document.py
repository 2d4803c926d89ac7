"""From a parsed YAML document to a policy, or to what is wrong with it.

Owns the messages for a malformed policy: field path, value, what is allowed; one line each. What a
policy may say is `policy.py`'s, but for what only a new document may not: the snapshots of older
episodes are still read. The YAML itself is parsed outside (`activities/policy_reader.py`).
"""

from typing import Any

from pydantic import ValidationError

from workflows.model.policy import Policy, PolicyError


def read_policy(body: object) -> Policy:
    """The policy in a parsed YAML document (None = an empty file = the built-in policy).

    Raises:
        PolicyError: one line for each wrong field: its path, its value and what is allowed.
    """
    if body is None:
        return Policy()
    if not isinstance(body, dict):
        raise PolicyError(f"policy: expected a mapping at the top, found {type(body).__name__}")
    try:
        policy = Policy.model_validate(body)
    except ValidationError as error:
        raise PolicyError("\n".join(_line(item) for item in error.errors())) from error
    wrong = [
        f"pools.{number}.admission.untainted: true needs expected_gpus, or no new node can be "
        f"counted; set pools.{number}.expected_gpus of {pool.name!r}, or untainted: false"
        for number, pool in enumerate(policy.pools)
        if pool.admission.untainted and pool.expected_gpus is None
    ]
    if wrong:
        raise PolicyError("\n".join(wrong))
    return policy


def _line(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "policy"
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        message = "no such field; see `fleetmend policy schema`"
    shown = "" if isinstance(value, (dict, list, tuple)) else f" (found {value!r:.80})"
    return f"{path}: {message}{shown}"
