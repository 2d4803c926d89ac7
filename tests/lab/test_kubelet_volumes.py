"""Files of volumes, the releases of the lab, and the addresses of its pods."""

import os
import socket
import stat
from pathlib import Path

import pytest

from workers.lab.kubelet.addresses import PodAddresses
from workers.lab.kubelet.images import ImageMissing, Releases, release_of
from workers.lab.kubelet.volumes import write_files


def _held(folder: Path) -> dict[str, bytes]:
    """What a program finds by the names at the volume's top."""
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if not entry.name.startswith(".."):
            files = [entry] if entry.is_file() else [p for p in entry.rglob("*") if p.is_file()]
            found |= {str(p.relative_to(folder)): p.read_bytes() for p in files}
    return found


def test_a_volume_holds_exactly_what_it_is_given_last(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_files(folder, {"a": b"1", "sub/b": b"2"})
    assert _held(folder) == {"a": b"1", "sub/b": b"2"}
    write_files(folder, {"a": b"3", "c": b"4"})
    assert _held(folder) == {"a": b"3", "c": b"4"}
    assert len([p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


def test_all_files_change_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_files(folder, {"a": b"old", "b": b"old"})
    opened = os.open(folder / "..data", os.O_RDONLY | os.O_DIRECTORY)
    try:
        target = (folder / "..data").readlink()
        write_files(folder, {"a": b"new", "b": b"new"})
        assert (folder / "..data").readlink() != target
        assert {(folder / name).read_bytes() for name in "ab"} == {b"new"}
    finally:
        os.close(opened)


def test_what_stays_the_same_is_not_written_again(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"1"})
    target = (tmp_path / "..data").readlink()
    write_files(tmp_path, {"a": b"1"})
    assert (tmp_path / "..data").readlink() == target


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    write_files(tmp_path / "v", {"key": b"s3cret"})
    assert stat.S_IMODE((tmp_path / "v/key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("fleetmend:lab", "lab"),
        ("registry.example:5000/team/fleetmend:1.2@sha256:0", "1.2"),
        ("fleetmend", "latest"),
        ("fleetmend-agent:stand-in", None),
        ("busybox", None),
    ],
)
def test_the_images_of_fleetmend_are_known_by_name(image: str, tag: str | None) -> None:
    assert release_of(image) == tag


def test_a_release_is_a_checkout_below_images(tmp_path: Path) -> None:
    (tmp_path / "next/workers").mkdir(parents=True)
    assert Releases(tmp_path).find("lab") is None
    assert Releases(tmp_path).find("next") == tmp_path / "next"
    with pytest.raises(ImageMissing, match=r"fleetmend:other is no release of this lab: .*/other"):
        Releases(tmp_path).find("other")


def test_two_labs_have_networks_of_their_own_whose_addresses_can_be_bound() -> None:
    one, other = PodAddresses.claim(), PodAddresses.claim()
    try:
        addresses = [one.next(), one.next(), other.next()]
        assert len(set(addresses)) == 3
        assert addresses[0].split(".")[:2] != addresses[2].split(".")[:2]
        with socket.create_server((addresses[0], 0)):
            pass
    finally:
        one.close()
        other.close()
