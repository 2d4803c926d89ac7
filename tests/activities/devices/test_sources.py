"""Which sources a node runs, and that they are light enough for a child each."""

import subprocess
import sys
from pathlib import Path

import pytest

from activities.devices.dcgm import DcgmSource
from activities.devices.sources import SOURCES, SourcesError, sources

HEAVY = (
    "pydantic",
    "kubernetes",
    "temporalio",
    "asyncio",
    "yaml",
    "structlog",
    "urllib3",
    "msgspec",
)


def test_all_sources_run_by_default() -> None:
    made = sources(Path("/host"), {})
    assert [source.name for source in made] == ["kernel-log", "nvml", "dcgm", "network"]
    assert [source.name for source in made] == list(SOURCES)


def test_the_environment_chooses() -> None:
    made = sources(Path("/host"), {"FLEETMEND_SOURCES": " network,kernel-log "})
    assert [source.name for source in made] == ["kernel-log", "network"]


def test_the_environment_sets_the_period_of_dcgm() -> None:
    (source,) = sources(
        Path("/host"), {"FLEETMEND_SOURCES": "dcgm", "FLEETMEND_DCGM_PERIOD_S": "10"}
    )
    assert isinstance(source, DcgmSource)
    assert source.period_s == 10


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("FLEETMEND_SOURCES", "kernel-log,smart", "use any of kernel-log, nvml, dcgm, network"),
        ("FLEETMEND_EXPECTED_GPUS", "eight", "use 0 to 1024"),
        ("FLEETMEND_EXPECTED_GPUS", "-1", "use 0 to 1024"),
        ("FLEETMEND_EXPECTED_RDMA", "99999", "use 0 to 1024"),
        ("FLEETMEND_EXPECTED_RDMA", "٤", "use 0 to 1024"),
        ("FLEETMEND_DCGM_PERIOD_S", "often", "use 5 to 600 seconds"),
        ("FLEETMEND_DCGM_PERIOD_S", "1", "use 5 to 600 seconds"),
        ("FLEETMEND_DCGM_PERIOD_S", "3600", "use 5 to 600 seconds"),
        ("FLEETMEND_DCGM_HOST_ENGINE", "unix:///run/x.sock", "use host:port, unix:///host/PATH"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_takes(
    variable: str, value: str, words: str
) -> None:
    with pytest.raises(SourcesError) as refused:
        sources(Path("/host"), {variable: value})
    assert str(refused.value).startswith(variable)
    assert words in str(refused.value)


def test_every_source_names_its_conditions_and_bounds() -> None:
    for source in sources(Path("/host"), {}):
        assert source.conditions
        assert 0 < source.deadline_s <= 60
        assert hasattr(source, "poll") != hasattr(source, "stream")


def test_making_the_sources_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from activities.devices.sources import sources; "
        "sources(Path('/host'), {}); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint(HEAVY)
