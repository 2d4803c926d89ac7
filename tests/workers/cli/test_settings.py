"""`fleetmend worker --settings`: whatever sets the process up is listed."""

from tests.harness.processes import fleetmend
from workers.cli.outcome import ExitCode
from workers.control.settings import describe_settings
from workers.telemetry import LEVEL_VARIABLE, LEVELS, OTLP_VARIABLE


def test_the_list_has_every_variable_and_the_levels_of_the_log() -> None:
    answer = fleetmend(None, "worker", "--settings")
    assert answer.code == ExitCode.OK, answer.err
    for variable in [*(row[0] for row in describe_settings()), LEVEL_VARIABLE, OTLP_VARIABLE]:
        assert variable in answer.out
    (line,) = [line for line in answer.out.splitlines() if LEVEL_VARIABLE in line]
    for level in LEVELS:
        assert level in line
