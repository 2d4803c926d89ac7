"""Rules about what is imported and what modules hold, beyond the contracts of import-linter in pyproject.toml."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest

from tests.architecture.sources import PACKAGES, ROOT, Source, sources

# Passed through Temporal's sandbox, so shared by all workflow runs of a process.
SHARED = sources("workflows/model", "workflows/contracts")
MUTABLE = (list, dict, set, bytearray)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


@pytest.mark.parametrize("name", PACKAGES)
def test_top_level_name_is_not_shadowed(name: str) -> None:
    """`workflows` and `workers` are also names of other distributions."""
    module = importlib.import_module(name)
    assert module.__file__ == str(ROOT / name / "__init__.py")


def test_modules_shared_with_the_sandbox_hold_nothing_mutable() -> None:
    offenders = [
        f"{source.name}: {part}"
        for source in SHARED
        for name, value in own_values(source)
        for part in mutable_parts(name, value)
    ]
    assert not offenders


def own_values(source: Source) -> Iterator[tuple[str, Any]]:
    """Module-level names that this module binds itself, not those that it imports."""
    module = importlib.import_module(source.name)
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                yield target.id, getattr(module, target.id)


def mutable_parts(name: str, value: Any) -> Iterator[str]:
    """Where a module-level value can be changed in place, by path."""
    if isinstance(value, MUTABLE):
        yield f"{name} is a {type(value).__name__}"
    elif isinstance(value, Enum):
        return
    elif isinstance(value, tuple | frozenset):
        for number, item in enumerate(value):
            yield from mutable_parts(f"{name}[{number}]", item)
    elif isinstance(value, MappingProxyType):
        for key, item in value.items():
            yield from mutable_parts(f"{name}[{key!r}]", item)
    elif isinstance(value, Mapping | Set):
        yield f"{name} is a {type(value).__name__}: wrap it in MappingProxyType or frozenset"


def test_mutable_parts_are_found() -> None:
    hidden = MappingProxyType({"row": (1, ["x"])})
    assert list(mutable_parts("T", hidden)) == ["T['row'][1] is a list"]
    assert not list(mutable_parts("T", MappingProxyType({"row": (1, frozenset({"x"}))})))


def contract(name: str) -> Any:
    return next(c for c in CONTRACTS if c["id"] == name)


def test_every_activity_package_stands_in_the_contracts() -> None:
    found = {
        f"activities.{folder.name}"
        for folder in (ROOT / "activities").iterdir()
        if (folder / "__init__.py").exists() and folder.name != "kube"
    }
    assert found == set(contract("activities")["modules"])
    assert found == set(contract("kube")["forbidden_modules"])


def test_every_process_stands_in_the_contract() -> None:
    found = {p.name for p in (ROOT / "workers").iterdir() if (p / "__init__.py").exists()}
    layers = contract("processes")["layers"]
    named = {word.strip("() ") for layer in layers for word in layer.replace(":", "|").split("|")}
    assert found <= named


@pytest.mark.parametrize("process", ["node_task", "agent"])
def test_what_runs_on_nodes_loads_no_client(process: str) -> None:
    """As the interpreter sees it, whatever the import graph says."""
    modules = [
        source.name for source in sources(f"workers/{process}") if "__main__" not in source.name
    ]
    code = f"import sys, {', '.join(modules)}; print(*{{'kubernetes', 'temporalio'}} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert loaded.stdout.strip() == ""
