"""The demo's summary: what it says to a reader who comes when all has ended."""

from io import StringIO

from rich.console import Console

from workers.lab.demo.view import NodeReport, Report, show_report

UI = "http://127.0.0.1:1"
NODE = NodeReport(
    node="training-1",
    pool="training",
    what="a GPU falls off the bus",
    should_end="returned",
    ended="returned",
    wrongs=(),
    detail="",
    phases=(("suspect", 0.1),),
    actions={"reboot": 1},
    boots=1,
    evicted_pods=1,
    history=f"{UI}/namespaces/default/workflows/w/r/history",
)
REPORT = Report(passed=True, took_s=60.0, temporal_ui=UI, directory="/d", nodes=(NODE,))


def shown(report: Report) -> str:
    out = StringIO()
    show_report(Console(file=out, width=200), report)
    return out.getvalue()


def test_addresses_are_shown_while_they_live() -> None:
    assert f"Temporal UI: {UI}" in shown(REPORT)
    assert NODE.history in shown(REPORT)


def test_no_address_is_shown_that_has_ended() -> None:
    ended = REPORT.without_addresses()
    assert UI not in shown(ended)
    assert "training-1" in shown(ended)
    assert UI not in str(ended.as_json())
