"""The table of faults and the reading of their options."""

import pytest

from workers.lab.faults.boot import NodeRecreatedSameName, RebootLies, SlowBoot
from workers.lab.faults.gpu import GpuLost
from workers.lab.faults.registry import (
    BadFault,
    describe_faults,
    fault_classes,
    make_fault,
    split_options,
)

NAMES = {
    "gpu-lost",
    "gpu-memory",
    "unknown",
    "kubelet-dead",
    "slow-boot",
    "reboot-hangs",
    "reboot-lies",
    "gpu-missing-after-reboot",
    "node-recreated-same-name",
    "agent-forgets",
    "agent-silent",
    "xid-79",
    "xid-48",
    "xid-94",
    "xid-13",
    "xid-31",
    "gpu-weak",
    "nvlink-down",
    "dcgm-hang",
    "dcgm-crash",
    "nvml-segfault",
    "nvml-hang",
    "driver-absent",
    "dcgm-absent",
    "kmsg-unreadable",
    "clock-skew",
    "rdma-link-down",
    "kernel-line",
}


def test_every_fault_is_found_by_its_name() -> None:
    assert set(fault_classes()) == NAMES


def test_every_fault_and_option_is_described_in_its_own_line() -> None:
    for line in describe_faults():
        assert line.description.endswith("."), line.name
        assert all(option.description for option in line.options), line.name


def test_options_are_typed() -> None:
    assert make_fault("gpu-lost", {"gpu": "3", "for": "2.5"}) == GpuLost(gpu=3, for_s=2.5)
    assert make_fault("slow-boot", {"seconds": "12"}) == SlowBoot(seconds=12)
    assert make_fault("reboot-lies", {"flap": "true"}) == RebootLies(flap=True)
    same = make_fault("node-recreated-same-name", {"same-machine": "true"})
    assert same == NodeRecreatedSameName(same_machine=True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpu-lots", {}, "no fault 'gpu-lots'; known: gpu-lost"),
        ("gpu-lost", {"gpus": "1"}, "fault gpu-lost has no option 'gpus'; known: for, gpu"),
        ("gpu-lost", {"gpu": "x"}, "fault gpu-lost, option gpu=x: Input should be a valid integer"),
        ("gpu-lost", {"gpu": "99"}, "option gpu=99: Input should be less than or equal to 15"),
        ("unknown", {"for": "0"}, "option for=0: Input should be greater than 0"),
        ("node-recreated-same-name", {"for": "3"}, "has no option 'for'; known: same-machine"),
    ],
)
def test_a_wrong_fault_or_option_is_refused_by_name(
    name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadFault) as refused:
        make_fault(name, options)
    assert message in str(refused.value)


@pytest.mark.parametrize("word", ["gpu", "=3", ""])
def test_an_option_that_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(BadFault, match="write it as key=value"):
        split_options([word])


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(BadFault, match="'gpu' is given twice"):
        split_options(["gpu=1", "gpu=2"])


def test_a_value_may_hold_an_equals_sign() -> None:
    assert split_options(["a=b=c"]) == {"a": "b=c"}
