"""Reboot proof: done, not done, or unknown; never done on a guess."""

from typing import Any

import pytest

from tests.model.views import HEALTHY, NOW, condition, node
from workflows.model.remediation.reboot import BootRecord, Proof, prove_reboot

BEFORE = BootRecord(HEALTHY.uid, HEALTHY.provider_id, HEALTHY.machine_uuid, HEALTHY.boot_id, NOW)
AWAY = {"conditions": {"Ready": condition("Ready", "Unknown")}}


@pytest.mark.parametrize(
    ("changes", "seen_down", "proof"),
    [
        pytest.param({"boot_id": "boot-2"}, False, Proof.DONE, id="ready-never-turned-false-R12"),
        pytest.param({"boot_id": "boot-2"}, True, Proof.DONE, id="went-and-came"),
        pytest.param({"boot_id": "boot-2", **AWAY}, True, Proof.UNKNOWN, id="not-ready-yet"),
        pytest.param({}, False, Proof.NOT_DONE, id="nothing-happened"),
        pytest.param({}, True, Proof.UNKNOWN, id="boot-id-lags-the-boot"),
        pytest.param(AWAY, False, Proof.UNKNOWN, id="away-with-the-old-boot-id"),
        pytest.param({"boot_id": ""}, False, Proof.UNKNOWN, id="no-boot-id-now"),
        pytest.param(
            {"boot_id": "boot-2", "uid": "uid-2"}, False, Proof.UNKNOWN, id="node-recreated"
        ),
        pytest.param(
            {"boot_id": "boot-2", "provider_id": "aws:///i-2"},
            False,
            Proof.UNKNOWN,
            id="another-instance",
        ),
        pytest.param(
            {"boot_id": "boot-2", "machine_uuid": "m-2"}, False, Proof.UNKNOWN, id="another-machine"
        ),
    ],
)
def test_what_is_known_of_a_reboot(changes: dict[str, Any], seen_down: bool, proof: Proof) -> None:
    found = prove_reboot(BEFORE, node(**changes), seen_down=seen_down)
    assert found.proof is proof
    assert found.detail


@pytest.mark.parametrize("boot_id", ["", "boot-1"])
def test_a_boot_id_that_was_never_recorded_proves_nothing(boot_id: str) -> None:
    """R13: the first real value after an empty one is no change."""
    before = BootRecord(HEALTHY.uid, HEALTHY.provider_id, HEALTHY.machine_uuid, "", NOW)
    assert prove_reboot(before, node(boot_id=boot_id)).proof is Proof.UNKNOWN
