"""Where DCGM's host engine may be: on the node's own socket, or at a host and port."""

import json
import re

import pytest

from tests.deploy.rendered import CHART
from workflows.model.host_engine import (
    HOST_ENGINE_VARIABLE,
    HostEngineError,
    host_engine,
    host_words,
    is_over_network,
)

SOCKET = "unix:///host/run/nvidia/dcgm-1.sock"
SERVICE = "nvidia-dcgm.gpu-operator.svc:5555"
NONE = {
    "host alone": "localhost",
    "no port": "localhost:",
    "a scheme": "tcp://localhost:5555",
    "socket of the pod": "unix:///run/dcgm.sock",
    "socket that leads out": "unix:///host/run/../../run/dcgm.sock",
    "no socket": "unix:///host",
    "an option": "--help:1",
    "two words": "a b:5555",
    "a quote": "a'b:5555",
    "a line": "localhost:5555\n",
    "over 114": f"{'a' * 110}:5555",
}


@pytest.mark.parametrize("address", [SOCKET, SERVICE, "10.0.0.7:5555", "localhost:5555"])
def test_an_address_is_told_to_dcgmi_as_it_is(address: str) -> None:
    assert host_engine({HOST_ENGINE_VARIABLE: address}) == address
    assert host_words(address) == ("--host", address)
    assert is_over_network(address) is (address != SOCKET)
    assert accepts(address)


@pytest.mark.parametrize("environment", [{}, {HOST_ENGINE_VARIABLE: ""}], ids=["unset", "empty"])
def test_without_an_address_dcgmi_is_told_nothing(environment: dict[str, str]) -> None:
    assert host_engine(environment) == ""
    assert host_words("") == ()
    assert not is_over_network("")
    assert accepts("")


@pytest.mark.parametrize("address", NONE.values(), ids=NONE.keys())
def test_what_is_no_address_is_refused_by_the_processes_and_by_the_chart(address: str) -> None:
    with pytest.raises(HostEngineError, match=f"^{HOST_ENGINE_VARIABLE}: .*use host:port"):
        host_engine({HOST_ENGINE_VARIABLE: address})
    assert not accepts(address)


def accepts(address: str) -> bool:
    """Whether the chart's schema does."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["dcgm"]
    rule = schema["properties"]["hostEngine"]
    pattern = str(rule["pattern"]).removeprefix("^").removesuffix("$")
    return len(address) <= rule["maxLength"] and bool(re.fullmatch(pattern, address))
