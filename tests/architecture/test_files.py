"""Rules about files: size, names, docstrings, and what the lock must and must not carry.

Each test lists every offender, so that one run shows all there is to mend.
"""

import ast
import re

from tests.architecture.sources import PACKAGES, ROOT, Source, packages, sources

MAX_LINES = 450
# A table may be longer: the module, and what it is a table of.
TABLES: dict[str, str] = {}
# Words that say nothing; the style asks for the field's word.
EMPTY_WORDS = {"common", "data", "handler", "helper", "info", "manager", "misc", "util"}

EVERY = sources(*PACKAGES, "tests")


def test_files_are_short_enough_to_read() -> None:
    long = {s.name: s.lines for s in EVERY if s.lines > MAX_LINES and s.name not in TABLES}
    assert not long, f"over {MAX_LINES} lines: split by nouns, or name the table in TABLES"


def test_tables_that_may_be_long_are_still_there_and_still_long() -> None:
    long = {s.name for s in EVERY if s.lines > MAX_LINES}
    assert not TABLES.keys() - long


def test_modules_say_what_they_own() -> None:
    silent = [s.name for s in EVERY if not s.is_package and not ast.get_docstring(s.tree)]
    assert not silent, "no module docstring"


def test_packages_say_what_they_are() -> None:
    """By their README.md or by the docstring of their __init__.py."""
    silent = [
        str(folder.relative_to(ROOT))
        for folder in packages(*PACKAGES)
        if not (folder / "README.md").exists()
        and not ast.get_docstring(Source(folder / "__init__.py").tree)
    ]
    assert not silent, "neither README.md nor a docstring in __init__.py"


def test_files_are_named_by_nouns_of_the_field() -> None:
    offenders = [
        s.name for s in EVERY if EMPTY_WORDS & {w.removesuffix("s") for w in s.path.stem.split("_")}
    ]
    assert not offenders


def test_every_folder_with_code_is_a_package() -> None:
    loose = [s.name for s in EVERY if not (s.path.parent / "__init__.py").exists()]
    assert not loose


def test_top_package_of_workflows_imports_nothing() -> None:
    body = Source(ROOT / "workflows" / "__init__.py").tree.body
    assert not [node for node in body if not isinstance(node, ast.Expr)]


def test_lock_names_no_host_and_hashes_everything() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    pinned = re.findall(r"^([a-z0-9].*)==", lock, re.MULTILINE)
    hashed = re.findall(r"^([a-z0-9].*)==.*\\\n +--hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) > 20
    assert pinned == hashed


def test_every_dependency_is_in_the_lock() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    lock = (ROOT / "requirements.lock").read_text()
    listed = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    names = re.findall(r'^\s+"([A-Za-z0-9-]+)', listed, re.MULTILINE)
    assert len(names) > 10
    locked = {name.partition("[")[0] for name in re.findall(r"^(\S+?)==", lock, re.MULTILINE)}
    assert not {name.lower() for name in names} - locked
