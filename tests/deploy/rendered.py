"""The chart as helm renders it, for tests that need no server.

Owns the calls of `helm template` and `helm lint`, each rendered once a run. Talks to nothing but the
program.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal

CHART: Final = Path(__file__).parents[2] / "deploy" / "chart"
HELM_LIMIT_S: Final = 60
NAMESPACE: Final = "gpu-care"
"""Another one than the lab's: what is fixed to `fleetmend` shows."""
ENGINE: Final = "nvidia-dcgm.gpu-operator.svc:5555"
GPU_ACCESS: Final = {"nodeTasks": {"runtimeClassName": "nvidia"}, "dcgm": {"hostEngine": ENGINE}}
"""Values of a release whose diagnoses have both ways to the GPUs."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """How one call of helm ended."""

    code: int
    output: str
    error: str


def helm(*words: str, values: Object | None = None) -> Answer:
    """One call of helm with these values."""
    argv = [str(find_helm(build_on_terminal)), *words]
    if values is not None:
        argv += ["--values", "-"]
    done = subprocess.run(
        argv,
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=HELM_LIMIT_S,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def template(values: Object | None = None) -> Answer:
    """What `helm template` says of the chart with these values over what must be given."""
    return helm(
        *("template", "care", str(CHART), "--namespace", NAMESPACE),
        values=with_required(values or {}),
    )


def with_required(values: Object) -> Object:
    """The values, with a cluster and an image unless they name one."""
    image = {"repository": "fleetmend", **values.get("image", {})}
    return {"cluster": "here", **values, "image": image}


def render(values: Object | None = None) -> tuple[Object, ...]:
    """The objects of the chart with these values; a hook's list is one of them."""
    return _render(json.dumps(values or {}, sort_keys=True))


def of_kind(objects: tuple[Object, ...], *kinds: str) -> Iterator[Object]:
    """Those of these kinds, in order."""
    return (item for item in objects if item["kind"] in kinds)


@cache
def _render(values: str) -> tuple[Object, ...]:
    answer = template(json.loads(values))
    assert answer.code == 0, answer.error
    return tuple(found for found in yaml.safe_load_all(answer.output) if found is not None)
