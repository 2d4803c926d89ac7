"""Health over HTTP at addresses of both families, as a kubelet's probe asks for it."""

import socket
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from workers.health import Probes, served
from workers.listening import Listen, read_listen

DEADLINE_S = 10.0
WELL = Probes(unhealthy=str, unready=str)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "listen",
    [
        pytest.param(Listen("127.0.0.1", 0), id="ipv4"),
        pytest.param(
            Listen("::1", 0),
            id="ipv6",
            marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1"),
        ),
    ],
)
def test_health_is_answered_at_an_address_of_each_family(listen: Listen) -> None:
    """An IPv6 cluster's pods have no other address: unanswered they are restarted for ever."""
    with capture_logs() as told, served(listen, WELL):
        (port,) = [line["port"] for line in told if line["event"] == "health_served"]
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        with urlopen(f"http://{host}:{port}/healthz", timeout=DEADLINE_S) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")


@pytest.mark.parametrize("text", ["[fd00::7]:8081", "fd00::7:8081"])
def test_a_pod_s_ipv6_address_is_read_with_and_without_brackets(text: str) -> None:
    assert read_listen("FLEETMEND_LISTEN", text, "127.0.0.1:8081") == Listen("fd00::7", 8081)
