"""Each line form of the kernel log, and what it is worth (ids as in the project's list of lines)."""

from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.devices.gpu_list import GpuList
from activities.devices.kernel_lines import KernelLine, Kind, bus_address, is_of_interest, read_line
from activities.devices.kernel_readings import KernelReadings
from activities.devices.kmsg import Record, Splitter
from activities.devices.reading import APPLICATION, Certainty, ConditionType, Reading
from workflows.model.detection.fault import Fault

NOW = datetime(2026, 11, 29, tzinfo=UTC)
UNKNOWN_PID = "pid='<unknown>', name=<unknown>"
AT_3D = "NVRM: Xid (PCI:0000:3d:00)"
AT_38 = "NVRM: Xid (PCI:0000:38:00)"
AT_9 = "NVRM: Xid (PCI:0009:01:00)"
MEMORY, CONTAINED = Fault.GPU_MEMORY_UNCORRECTABLE, Fault.GPU_MEMORY_CONTAINED
LINK, DRIVER, UNKNOWN = Fault.INTERCONNECT, Fault.GPU_DRIVER, Fault.DIAGNOSTIC_UNKNOWN

CASES: dict[str, tuple[str, str | None, str]] = {
    # id: (line, "device/code" or None = nothing is told, fault)
    "L01": ("NVRM: Xid (0000:3d:00): 14, Channel 00000001", None, ""),
    "L02": (f"{AT_3D}: 79, GPU has fallen off the bus.", "0000:3d:00/xid-79", Fault.GPU_LOST),
    "L04": (
        f"{AT_3D}: 43, pid=41822, name=cuda_assert_64b, Ch 00000018",
        "0000:3d:00/xid-43",
        APPLICATION,
    ),
    "L05": (f"{AT_3D}: 62, 0a2c(2d50) 00000000 00000000", "0000:3d:00/xid-62", DRIVER),
    "L07": (
        f"NVRM: Xid (PCI:0000:9b:00): 79, {UNKNOWN_PID}, GPU has fallen off the bus.",
        "0000:9b:00/xid-79",
        Fault.GPU_LOST,
    ),
    "L08": (
        (
            f"{AT_38}: 13, {UNKNOWN_PID}, Graphics SM Warp Exception on (GPC 9, TPC 5, SM 0): Out Of "
            "Range Address"
        ),
        "0000:38:00/xid-13",
        APPLICATION,
    ),
    "L10": (
        f"{AT_38}: 13, {UNKNOWN_PID}, Graphics Exception: ESR 0x54cfb0=0x11f000e 0x54cfb4=0x24",
        "0000:38:00/xid-13",
        APPLICATION,
    ),
    "L12": (
        f"{AT_38}: 45, pid=2924011, name=pt_main_thread, Ch 00000009",
        "0000:38:00/xid-45",
        APPLICATION,
    ),
    "L13": (
        f"{AT_38}: 69, pid=34566, name=python3, Class Error: ChId 0008, Class 0000cbc0",
        "0000:38:00/xid-69",
        APPLICATION,
    ),
    "L14": (
        f"{AT_38}: 32, pid=7001, name=trainer, Channel ID 0000000d intr0 00040000",
        "0000:38:00/xid-32",
        APPLICATION,
    ),
    "L15": (
        f"{AT_38}: 48, {UNKNOWN_PID}, An uncorrectable double bit error (DBE) has been detected",
        "0000:38:00/xid-48",
        MEMORY,
    ),
    "L16": (f"{AT_38}: 63, {UNKNOWN_PID}, Row Remapper: New row marked", None, ""),
    "L17": (f"{AT_38}: 64, {UNKNOWN_PID}, Row Remapper Error", "0000:38:00/xid-64", MEMORY),
    "L19": (f"{AT_38}: 64, pid=1187, Dynamic Page Retirement", "0000:38:00/xid-64", MEMORY),
    "L20": (
        f"{AT_38}: 94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
        "0000:38:00/xid-94/sm-0x1",
        CONTAINED,
    ),
    "L21": (
        "NVRM: Xid (PCI:0000:38:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No",
        "0000:38:00/xid-94/ce-user-channel-0x9",
        CONTAINED,
    ),
    "L23": (
        f"{AT_38}: 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
        "0000:38:00/xid-95/ltc-tag-0x2-0x1",
        MEMORY,
    ),
    "L24": (
        (
            f"{AT_38}: 74, {UNKNOWN_PID}, NVLink: fatal error detected on link 14"
            "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        ),
        "0000:38:00/xid-74/14",
        LINK,
    ),
    "L25": (
        f"{AT_38}: 109, pid=9123, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT",
        "0000:38:00/xid-109",
        DRIVER,
    ),
    "L26": (
        "NVRM: Xid (PCI:0002:00:00): 119, pid=67769, name=nvidia-smi, Timeout waiting for RPC",
        "0002:00:00/xid-119",
        DRIVER,
    ),
    "L28": ("NVRM: GPU4 RPC history (CPU -> GSP):", None, ""),
    "L29": (
        f"{AT_38}: 140, {UNKNOWN_PID}, An uncorrectable ECC error detected DRAM:-1840691462, LTC:0",
        "0000:38:00/xid-140",
        MEMORY,
    ),
    "L30": (f"{AT_38}: 92, {UNKNOWN_PID}, High single-bit ECC error rate", None, ""),
    "L32": (
        f"{AT_38}: 143, {UNKNOWN_PID}, Error status 0x3b",
        "0000:38:00/xid-143",
        Fault.GPU_LOST,
    ),
    "L34": (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x0)",
        "0018:01:00/xid-149/08",
        LINK,
    ),
    "L35": (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226)",
        None,
        "",
    ),
    "L37": (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406",
        "0018:01:00/xid-149",
        LINK,
    ),
    "L38": (
        (
            "NVRM: Xid (PCI:0019:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal "
            "XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
        ),
        None,
        "",
    ),
    "L40": (
        "NVRM: Xid (PCI:0000:04:00): 144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002)",
        "0000:04:00/xid-144/00",
        LINK,
    ),
    "L41": (
        "NVRM: Xid (PCI:0000:04:00): 146, TLW_RX/TLW_RX_PIPE1 Fatal XC0 i0 Link 00 (0x0000000b)",
        "0000:04:00/xid-146/00",
        LINK,
    ),
    "L42": (
        "NVRM: Xid (PCI:0000:04:00): 148, NVLPW_CTRL/NVLPW Nonfatal XC0 i0 Link 00 (0x0000000f)",
        None,
        "",
    ),
    "L43": (
        f"{AT_9}: 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        "0009:01:00/xid-154",
        CONTAINED,
    ),
    "L45": (
        f"{AT_9}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        None,
        "",
    ),
    "L46": (f"{AT_9}: 154 (", "0009:01:00/xid-154", UNKNOWN),
    "L48": (
        f"{AT_9}: 94, pid=7062, name=python3, Contained: DRAM (0x3, 0x0). physAddr: 0x12 RST: No",
        "0009:01:00/xid-94/dram-0x3-0x0",
        CONTAINED,
    ),
    "L49": (
        f"{AT_9}: 119, pid=1240590, name=gpud, Timeout after 45s of waiting for RPC response",
        "0009:01:00/xid-119",
        DRIVER,
    ),
    "L51": (f"{AT_9}: 172, GSP-RISCV, Uncorrectable SRAM error", "0009:01:00/xid-172", MEMORY),
    "L53": ("NVRM: GPU Board Serial Number: 1650100000001", None, ""),
    "L54": (
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "0000:18:00/xid-79",
        Fault.GPU_LOST,
    ),
    "L58": (
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
        "0000:3b:00/rm-init-failed",
        Fault.GPU_LOST,
    ),
    "L61": ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.20", None, ""),
    "L63": (
        "nvidia: probe of 0000:3b:00.0 failed with error -1",
        "0000:3b:00/gpu-probe-failed",
        Fault.GPU_LOST,
    ),
    "L63 (6.7)": (
        "nvidia 0000:3b:00.0: probe with driver nvidia failed with error -1",
        "0000:3b:00/gpu-probe-failed",
        Fault.GPU_LOST,
    ),
    "L64": (
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "host/nvlink-training",
        UNKNOWN,
    ),
    "L65": ("nvidia-modprobe: ERROR: Could not insert 'nvidia': No such device", None, ""),
    "L66": ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context", None, ""),
    "L67": (
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        "0000:06:00/sxid-20034",
        LINK,
    ),
    "L71": (
        "nvidia-nvswitch0: SXid (PCI:0000:0a:00.0): 22013, Non-fatal, Link 57 Minion Link DLREQ",
        None,
        "",
    ),
    "L75": (
        "mlx5_core 0000:5c:00.0: Detected insufficient power on the PCIe slot (27W).",
        None,
        "",
    ),
    "L82": ("mlx5_core 0000:65:00.0 enp75s0np0: Link down", None, ""),
    "L88": (
        "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:9b:00.0",
        None,
        "",
    ),
    "L90": (
        "nvidia 0000:9b:00.0:   device [10de:2330] error status/mask=00000040/0000a000",
        None,
        "",
    ),
    "L91": ("nvidia 0000:9b:00.0:    [ 6] BadTLP", None, ""),
    "L94": ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090", None, ""),
    "L97": (" nvme nvme4: I/O tag 22 (2016) opcode 0x2 QID 0 timeout, reset controller", None, ""),
    "L103": ("INFO: task jfsmount:136986 blocked for more than 120 seconds.", None, ""),
    "L106": ("Memory cgroup out of memory: Killed process 12345 (python3)", None, ""),
    "L115": (
        (
            "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=1263500, "
            "name=cache_mgr_main, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
        ),
        "0000:9b:00/xid-119",
        DRIVER,
    ),
    "L117": (
        (
            "May 19 07:08:57 node-a12 kernel: [680111.646286] NVRM: Xid (PCI:0000:9b:00): 94, pid=7194, "
            "name=python3, Contained: SM (0x1). RST: No, D-RST: No"
        ),
        "0000:9b:00/xid-94/sm-0x1",
        CONTAINED,
    ),
    "unknown code": (f"{AT_38}: 899, something new", "0000:38:00/xid-899", UNKNOWN),
    "bare code": (f"{AT_38}: 46", "0000:38:00/xid-46", DRIVER),
    "cut in the address": ("NVRM: Xid (PCI:0000:9b", "host/xid-unreadable", UNKNOWN),
    "no line of the driver": ("systemd: the Xid monitor was started", None, ""),
    "wide domain": (
        "NVRM: Xid (PCI:10000:9B:00.0): 79, GPU has fallen off the bus.",
        "10000:9b:00/xid-79",
        Fault.GPU_LOST,
    ),
}


def make_readings(gpus: GpuList | None = None) -> KernelReadings:
    made = KernelReadings(lambda: gpus or GpuList())
    made.look(0.0)
    return made


def told(readings: KernelReadings, *lines: str, now: float = 100.0) -> list[Reading]:
    return [reading for line in lines for reading in readings.take(line, NOW, now)]


@pytest.mark.parametrize("case", CASES)
def test_each_line_form_is_worth_what_the_list_says(case: str) -> None:
    line, key, fault = CASES[case]
    found = told(make_readings(), line)
    assert [(reading.key, reading.fault) for reading in found] == ([(key, fault)] if key else [])
    assert key is None or is_of_interest(line.encode())


@pytest.mark.parametrize("case", [name for name, (_, key, _) in CASES.items() if key])
def test_each_reading_says_what_it_means_for_the_node(case: str) -> None:
    line, _, fault = CASES[case]
    (reading,) = told(make_readings(), line)
    assert (reading.condition is None) == (fault == APPLICATION)
    assert (reading.status == "Unknown") == (fault == UNKNOWN)
    assert reading.lasting == (fault != APPLICATION)
    assert reading.text.isprintable()
    assert len(reading.text) <= 256


def test_a_name_with_colons_or_a_comma_does_not_hide_the_text() -> None:
    line = f"{AT_38}: 145, pid=1, name=a::b, c, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1)"
    assert told(make_readings(), line) == []


def test_the_mig_instance_is_read() -> None:
    line = "NVRM: Xid (PCI:0000:38:00 GPU-I:05 GPU-CI:02): 94, pid=7194, Contained: SM (0x1)."
    assert read_line(line) == KernelLine(Kind.XID, "0000:38:00", 94, "Contained: SM (0x1).", 5)


def test_three_lines_of_one_loss_are_one_reading_with_the_address_of_the_first() -> None:
    found = told(
        make_readings(),
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [(r.key, r.fault) for r in found] == [("0000:18:00/xid-79", Fault.GPU_LOST)]


def test_the_text_of_a_loss_and_its_xid_are_one_fault() -> None:
    lines = (CASES["L54"][0], "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
    assert len(told(make_readings(), *lines)) == 1


def test_a_bus_address_becomes_the_uuid_that_the_lines_before_named() -> None:
    uuid = "GPU-5f0e1d2c-aaaa-bbbb-cccc-0123456789ab"
    found = told(make_readings(), f"NVRM: GPU at PCI:0000:9b:00: {uuid}", CASES["L07"][0])
    assert [(r.device, r.key) for r in found] == [(uuid, f"{uuid}/xid-79")]


def test_a_bus_address_becomes_the_uuid_that_procfs_names() -> None:
    gpus = GpuList(uuids=MappingProxyType({"0000:9b:00": "GPU-1"}))
    assert [r.device for r in told(make_readings(gpus), CASES["L07"][0])] == ["GPU-1"]


AER_OLD = "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:9b:00.0"
AER_NEW = (
    "pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from 0000:9b:00.0"
)
SLOT = "pcieport 0000:00:03.1: pciehp: Slot(12): Link Down"


@pytest.mark.parametrize("line", [AER_OLD, AER_NEW])
def test_a_fatal_pcie_error_counts_if_it_is_a_gpus(line: str) -> None:
    gpus = GpuList(on_bus=frozenset({"0000:9b:00"}))
    found = told(make_readings(gpus), line)
    assert [(r.key, r.fault) for r in found] == [("0000:9b:00/aer-fatal", Fault.GPU_LOST)]
    assert found[0].certainty is Certainty.LIKELY
    assert told(make_readings(), line) == []


@pytest.mark.parametrize(
    "gpus",
    [
        GpuList(behind=MappingProxyType({"0000:00:03": frozenset({"0000:9b:00"})})),
        GpuList(in_slot=MappingProxyType({"12": "0000:9b:00"})),
    ],
    ids=["by the port", "by the slot"],
)
def test_a_slot_whose_link_went_down_counts_if_a_gpu_is_in_it(gpus: GpuList) -> None:
    found = told(make_readings(gpus), SLOT)
    assert [(r.key, r.fault) for r in found] == [("0000:9b:00/pcie-link-down", Fault.GPU_LOST)]
    assert told(make_readings(), SLOT) == []


def test_the_lines_after_an_sxid_are_not_new_but_alone_they_count() -> None:
    more = CASES["L67"][0].replace("Fatal, Link 48 LTSSM Fault Up", "Severity 1 Engine instance 60")
    assert len(told(make_readings(), CASES["L67"][0], more)) == 1
    (alone,) = told(make_readings(), more)
    assert (alone.status, alone.condition) == ("Unknown", ConditionType.INTERCONNECT)


def test_a_recovery_action_of_none_makes_a_context_switch_timeout_the_jobs() -> None:
    nothing = (
        f"{AT_38}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    )
    (reading,) = told(make_readings(), nothing, CASES["L25"][0])
    assert reading.fault == APPLICATION


def test_a_forged_line_of_user_space_is_not_read() -> None:
    line = "kernel: NVRM: Xid (PCI:0000:9b:00): 79, fake xid generated by dcgm tests"
    records = list(Splitter().feed(f"12,1,1,-;{line}\n4,2,1,-;{CASES['L02'][0]}\n".encode()))
    lines = [text for item in records if isinstance(item, Record) for text in item.lines]
    assert [r.device for r in told(make_readings(), *lines)] == ["0000:3d:00"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:9B:00.0", "0000:9b:00"),
        ("0000:9b:00.0", "0000:9b:00"),
        ("0000:9b:00", "0000:9b:00"),
        ("10000:9b:00.0", "10000:9b:00"),
        ("9b:00.0", ""),
        ("", ""),
        ("x", ""),
    ],
)
def test_every_form_of_a_bus_address_is_the_same(text: str, address: str) -> None:
    assert bus_address(text) == address


@given(st.text(max_size=300))
def test_any_line_is_read_without_an_error(line: str) -> None:
    told(make_readings(), line, f"NVRM: Xid (PCI:0000:38:00): {line}", f"NVRM: Xid ({line}")
