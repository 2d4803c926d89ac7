"""RDMA devices: counted against what is expected or was seen, links believed down the second time."""

import shutil
from pathlib import Path

import pytest

from activities.devices.network import NetworkSource
from activities.devices.reading import CannotTell, ConditionType
from workers.lab.devices.network import RdmaDevice, efa_devices, infiniband_devices
from workers.lab.devices.sysfs import Sysfs

CLASS = "sys/class/infiniband"


def _show(root: Path, *devices: RdmaDevice) -> Sysfs:
    sysfs = Sysfs(root)
    for device in devices:
        sysfs.show(device)
    return sysfs


def _codes(source: NetworkSource) -> list[tuple[str, str]]:
    return [(reading.device, reading.code) for reading in source.poll()]


@pytest.mark.parametrize("kind", [infiniband_devices, efa_devices])
def test_healthy_devices_have_nothing_to_tell(tmp_path: Path, kind: object) -> None:
    _show(tmp_path, *kind(8))  # type: ignore[operator]
    source = NetworkSource(tmp_path, 8)
    assert [source.poll() for _ in range(3)] == [(), (), ()]


@pytest.mark.parametrize(
    ("devices", "code"),
    [(infiniband_devices(4), "ib-link-down"), (efa_devices(4), "efa-link-down")],
    ids=["infiniband", "efa"],
)
def test_a_link_that_goes_down_is_believed_the_second_time(
    tmp_path: Path, devices: tuple[RdmaDevice, ...], code: str
) -> None:
    sysfs = _show(tmp_path, *devices)
    source = NetworkSource(tmp_path)
    assert source.poll() == ()
    sysfs.show(devices[1].down())
    assert source.poll() == ()
    (reading,) = source.poll()
    assert (reading.device, reading.code, reading.fault) == (devices[1].name, code, "network")
    assert (reading.condition, reading.status) == (ConditionType.NETWORK, "False")
    assert "1: DOWN" in reading.text
    sysfs.show(devices[1])
    assert source.poll() == ()


def test_a_link_that_flaps_within_one_poll_is_not_told(tmp_path: Path) -> None:
    devices = infiniband_devices(2)
    sysfs = _show(tmp_path, *devices)
    source = NetworkSource(tmp_path)
    source.poll()
    for _ in range(3):
        sysfs.show(devices[0].down())
        assert source.poll() == ()
        sysfs.show(devices[0])
        assert source.poll() == ()


@pytest.mark.parametrize(
    ("devices", "code"),
    [(infiniband_devices(3), "ib-missing"), (efa_devices(3), "efa-missing")],
    ids=["infiniband", "efa"],
)
def test_a_device_that_vanishes_is_missed(
    tmp_path: Path, devices: tuple[RdmaDevice, ...], code: str
) -> None:
    sysfs = _show(tmp_path, *devices)
    source = NetworkSource(tmp_path)
    source.poll()
    sysfs.hide(devices[2].bus_id)
    source.poll()
    assert _codes(source) == [(devices[2].name, code)]


def test_a_device_that_was_never_there_is_missed_only_if_it_is_expected(tmp_path: Path) -> None:
    _show(tmp_path, *efa_devices(3))
    unexpected, expected = NetworkSource(tmp_path), NetworkSource(tmp_path, 4)
    assert [unexpected.poll(), unexpected.poll()] == [(), ()]
    assert expected.poll() == ()
    assert _codes(expected) == [("", "rdma-missing")]


def test_a_link_that_was_never_up_is_missed_only_if_it_is_expected(tmp_path: Path) -> None:
    first, second = infiniband_devices(2)
    _show(tmp_path, first, second.down())
    unexpected, expected = NetworkSource(tmp_path), NetworkSource(tmp_path, 2)
    assert [unexpected.poll(), unexpected.poll()] == [(), ()]
    expected.poll()
    assert _codes(expected) == [("", "rdma-missing")]


def test_a_node_without_rdma_devices_has_nothing_wrong(tmp_path: Path) -> None:
    source = NetworkSource(tmp_path)
    assert [source.poll(), source.poll()] == [(), ()]


def test_a_folder_that_cannot_be_read_cannot_tell_if_there_are_devices(tmp_path: Path) -> None:
    with pytest.raises(CannotTell, match="mount the host's /sys"):
        NetworkSource(tmp_path, 8).poll()
    _show(tmp_path, *infiniband_devices(1))
    source = NetworkSource(tmp_path)
    source.poll()
    shutil.rmtree(tmp_path / CLASS)
    with pytest.raises(CannotTell):
        source.poll()


def test_odd_names_and_texts_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / CLASS / "na me/ports/1").mkdir(parents=True)
    (tmp_path / CLASS / "mlx5_0/ports/x").mkdir(parents=True)
    port = tmp_path / CLASS / "mlx5_0/ports/1"
    port.mkdir()
    (port / "state").write_bytes(b"4: ACTIVE\n")
    source = NetworkSource(tmp_path)
    assert source.poll() == ()
    (port / "state").write_bytes(b"\xff\x00" * 100_000)
    source.poll()
    (reading,) = source.poll()
    assert reading.text.isprintable()
    assert len(reading.text) <= 256
