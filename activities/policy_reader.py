"""Reading a policy: from the text of a file or of the ConfigMap to a checked value.

Owns the YAML, the bounds and the messages, in which each line begins with where the text stands.
What a policy may say is checked in `workflows/model/policy.py`; which place counts is
`policy_file.py`'s. The one reader of the worker, watch and `fleetmend policy check`; it imports no
client of the cluster, so that a command can use it alone.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from workflows.contracts.options import read_policy_for_steps
from workflows.model.policy import Policy, PolicyError

POLICY_CONFIG_MAP: Final = "fleetmend-policy"
POLICY_KEY: Final = "policy.yaml"
POLICY_VARIABLE: Final = "FLEETMEND_POLICY"
IN_CONFIG_MAP: Final = f"ConfigMap {POLICY_CONFIG_MAP}"
MAX_POLICY_BYTES: Final = 1 << 20
"""A ConfigMap holds no more than 1 MiB (Kubernetes documentation of ConfigMaps); a policy of 64
pools and 128 rules is under 100 kB."""
MAX_PROBLEM: Final = 300
"""Of what the YAML parser says, in characters."""


def parse_policy(text: str, origin: str) -> Policy:
    """The policy in YAML text; "" is the built-in one.

    Raises:
        PolicyError: one line for each defect: origin, field path, value, what is allowed.
    """
    if len(text) > MAX_POLICY_BYTES:
        raise PolicyError(_too_long(origin))
    try:
        return read_policy_for_steps(_StrictLoader(text).get_single_data())
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyError(f"{origin}: not YAML: {_one_line(error)}") from error
    except PolicyError as error:
        lines = (f"{origin}: {line}" for line in str(error).splitlines())
        raise PolicyError("\n".join(lines)) from error


def read_policy_file(path: Path) -> Policy:
    """The policy in a file.

    Raises:
        PolicyError: the file cannot be read or used; each line begins with the file's name.
    """
    return parse_policy(file_text(path), str(path))


def file_text(path: Path) -> str:
    """What stands in a policy file.

    Raises:
        PolicyError: it cannot be read, or is too long for a policy.
    """
    try:
        with path.open("rb") as file:
            found = file.read(MAX_POLICY_BYTES + 1)
        if len(found) > MAX_POLICY_BYTES:
            raise PolicyError(_too_long(str(path)))
        return found.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PolicyError(f"{path}: cannot be read: {reason}") from error


def config_map_text(text_by_key: Mapping[str, object]) -> str:
    """What stands in the ConfigMap's data.

    Raises:
        PolicyError: it holds no policy.
    """
    text = text_by_key.get(POLICY_KEY)
    if not isinstance(text, str):
        raise PolicyError(
            f"{IN_CONFIG_MAP}: key {POLICY_KEY!r} is missing; add it, or delete the ConfigMap to "
            "use the policy file or the built-in policy"
        )
    return text


class _StrictLoader(yaml.SafeLoader):
    """As SafeLoader, but a key that stands twice is an error: the last would count, unsaid."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - the base's signature
    ) -> dict[Hashable, Any]:
        lines: dict[object, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # the base class refuses what cannot be a key
            key, line = self.construct_object(key_node), key_node.start_mark.line + 1
            if key in lines:
                raise PolicyError(
                    f"key {key!r:.80} stands twice, in lines {lines[key]} and {line}; leave one "
                    "out, or put what both say under one"
                )
            lines[key] = line
        return super().construct_mapping(node, deep=deep)


def _too_long(origin: str) -> str:
    return f"{origin}: larger than {MAX_POLICY_BYTES} bytes; is it a policy?"


def _one_line(error: yaml.YAMLError | RecursionError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    text = f"{getattr(error, 'problem', None) or error}{where}"
    return text.replace("\n", " ")[:MAX_PROBLEM]
