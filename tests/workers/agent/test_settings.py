"""The agent's variables: what they mean, and that a wrong one is named with its remedy."""

import pytest

from workers.agent.settings import AgentSettings
from workers.listening import Listen, SettingsError

GOOD = {"NODE_NAME": "gpu-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_a_pods_environment_is_enough() -> None:
    settings = AgentSettings.from_environment(GOOD)
    assert (settings.node, settings.api_host, settings.api_port) == ("gpu-1", "10.0.0.1", 443)
    assert str(settings.host_root) == "/host"
    assert settings.listen == Listen("127.0.0.1", 9472)
    assert settings.refresh_s == 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NODE_NAME", ""),
        ("NODE_NAME", "../other"),
        ("KUBERNETES_SERVICE_HOST", ""),
        ("KUBERNETES_SERVICE_PORT", "https"),
        ("KUBERNETES_SERVICE_PORT", "70000"),
        ("FLEETMEND_AGENT_LISTEN", "everywhere"),
        ("FLEETMEND_AGENT_LISTEN", "127.0.0.1:99999"),
        ("FLEETMEND_AGENT_REFRESH_S", "soon"),
        ("FLEETMEND_AGENT_REFRESH_S", "0"),
        ("FLEETMEND_AGENT_REFRESH_S", "901"),
        ("FLEETMEND_AGENT_REFRESH_S", "nan"),
        ("FLEETMEND_LOG_LEVEL", "chatty"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}"):
        AgentSettings.from_environment({**GOOD, name: value})


def test_health_can_be_off() -> None:
    off = AgentSettings.from_environment({**GOOD, "FLEETMEND_AGENT_LISTEN": "off"})
    assert off.listen is None
