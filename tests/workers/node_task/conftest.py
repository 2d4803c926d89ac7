"""The host that a node task stands on, as files."""

from pathlib import Path

import pytest

BOOT = "5a1c2f6e-0000-4000-8000-000000000001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A mounted host root that tells its boot, and nothing else."""
    folder = tmp_path / "host"
    boot = folder / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(BOOT + "\n")
    return folder
