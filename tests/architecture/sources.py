"""The project's own modules as files and syntax trees, for the tests that read code."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("workflows", "activities", "workers")


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path

    @property
    def name(self) -> str:
        """Dotted name, as it is imported."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def sources(*tops: str) -> list[Source]:
    """Every Python file below those top packages."""
    return [Source(path) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def packages(*tops: str) -> Iterator[Path]:
    """Every folder with Python files below those top packages."""
    yield from sorted({source.path.parent for source in sources(*tops)})
