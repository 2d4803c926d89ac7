"""NVML as a source: every GPU that there is to be, and what each says about itself.

Owns the inventory (expected, known from before, shown by procfs and PCI, against what NVML gives)
and the poll over all GPUs. What one GPU says is `nvml_gpu.py`'s. Answers for GPUs and interconnect.
A driver that is absent cannot tell; a GPU that is absent is lost.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from activities.devices.fact import Fact, FirstSeen, utc_now
from activities.devices.gpu_list import GpuList, read_gpus
from activities.devices.kernel_lines import bus_address
from activities.devices.nvml_calls import Refusal, Refused, Session, text_of
from activities.devices.nvml_gpu import REFUSALS, Baseline, links_up, look_at
from activities.devices.reading import CannotTell, ConditionType, Reading
from workflows.model.detection.fault import Fault
from workflows.model.detection.verdict import Verdict, certain, likely

MAX_GPUS: Final = 64
CONFIRMED_AFTER: Final = 2
"""Polls in a row in which NVML gave no readable answer, the second in a fresh session."""


@dataclass(frozen=True)
class _Gpu:
    """A GPU that gave its name in this poll."""

    uuid: str
    handle: Any


class NvmlSource:
    """A `PolledSource` over NVML.

    Args:
        host_root: where the host's procfs and sysfs are.
        expected: how many GPUs a healthy node has; None = nobody says.
    """

    name = "nvml"
    period_s = 15.0
    deadline_s = 10.0
    conditions = frozenset({ConditionType.GPU, ConditionType.INTERCONNECT})

    def __init__(
        self,
        host_root: Path,
        expected: int | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._host_root = host_root
        self._expected = expected
        self._clock = clock
        self._session = Session()
        self._known: dict[str, Baseline] = {}
        self._first_seen = FirstSeen()

    def poll(self) -> tuple[Reading, ...]:
        """All that NVML says is wrong now.

        Raises:
            CannotTell: no driver, no library, or NVML refuses as a whole.
        """
        try:
            self._session.open()
            gpus, refusals = self._gpus()
            facts = [*self._of_present(gpus), *self._of_absent(gpus, refusals)]
        except Refused as refused:
            self._session.drop()
            raise CannotTell(
                f"NVML does not list the GPUs ({refused}); see the kernel log"
            ) from None
        except CannotTell:
            self._session.drop()
            raise
        return self._first_seen.dated(facts, self._clock())

    def _gpus(self) -> tuple[list[_Gpu], list[Refusal]]:
        """The GPUs that give their name, and how each of the others refuses."""
        gpus: list[_Gpu] = []
        refusals: list[Refusal] = []
        for index in range(min(self._session.ask("nvmlDeviceGetCount") or 0, MAX_GPUS)):
            try:
                gpus.append(self._gpu(index))
            except Refused as refused:
                if refused.why is Refusal.OURS:
                    raise _not_permitted(refused) from None
                refusals.append(refused.why)
        return gpus, refusals

    def _gpu(self, index: int) -> _Gpu:
        ask = self._session.ask
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        uuid = text_of(ask("nvmlDeviceGetUUID", handle))[:96] if handle is not None else ""
        if not uuid:
            raise Refused(Refusal.AMBIGUOUS, 0)
        if uuid not in self._known:
            pci = ask("nvmlDeviceGetPciInfo", handle)
            address = "" if pci is None else bus_address(text_of(pci.busId))
            self._known[uuid] = Baseline(uuid, address)
        return _Gpu(uuid, handle)

    def _of_present(self, gpus: list[_Gpu]) -> Iterator[Fact]:
        links: dict[str, frozenset[int]] = {}
        for gpu in gpus:
            with contextlib.suppress(Refused):
                links[gpu.uuid] = links_up(self._session, gpu.handle)
        usual = _usual(links)
        has_refused = False
        for gpu in gpus:
            baseline = self._known[gpu.uuid]
            own = links.get(gpu.uuid, frozenset())
            try:
                yield from look_at(self._session, gpu.handle, baseline, own, usual)
                baseline.doubts = 0
            except Refused as refused:
                has_refused = True
                yield _refused(baseline, refused)
        if has_refused:
            self._session.drop()

    def _of_absent(self, gpus: list[_Gpu], refusals: list[Refusal]) -> Iterator[Fact]:
        """The GPUs that are to be there and did not give their name."""
        present = {gpu.uuid for gpu in gpus}
        lost = self._missing(present, read_gpus(self._host_root))
        for device, why in zip(list(lost), refusals, strict=False):
            lost[device] = self._why_unnamed(device, why)
        if refusals:
            self._session.drop()
        for device, (verdict, text) in lost.items():
            yield Fact(device, "nvml-gpu-lost", verdict, f"GPU {device}: {text}")
        unnamed = len(refusals) - len(lost)
        missing = (self._expected or 0) - len(present) - len(lost)
        if unnamed > 0 or missing > 0:
            expected = len(present) + len(lost) + max(unnamed, missing)
            text = f"{len(present)} of {expected} GPUs answer"
            yield Fact("", "nvml-gpu-count", certain(Fault.GPU_LOST), text)

    def _why_unnamed(self, device: str, why: Refusal) -> tuple[Verdict, str]:
        verdict, _, text = REFUSALS[why]
        if why is not Refusal.AMBIGUOUS:
            return verdict, text
        baseline = self._known.get(device)
        if baseline is None:
            return verdict, text
        baseline.doubts += 1
        is_confirmed = baseline.doubts >= CONFIRMED_AFTER
        return (likely(Fault.GPU_LOST) if is_confirmed else verdict), text

    def _missing(self, present: set[str], hosts: GpuList) -> dict[str, tuple[Verdict, str]]:
        """By UUID, or by address where nobody knows it: GPUs that NVML does not name."""
        lost: dict[str, tuple[Verdict, str]] = {}
        for uuid in self._known:
            if uuid not in present:
                lost[uuid] = (certain(Fault.GPU_LOST), "NVML no longer lists it")
        named = {baseline.address for baseline in self._known.values()}
        for address in sorted(hosts.addresses - named):
            device = hosts.uuids.get(address) or address
            lost.setdefault(device, (likely(Fault.GPU_LOST), "the host has it, NVML lists it not"))
        return lost


def _refused(baseline: Baseline, refused: Refused) -> Fact:
    if refused.why is Refusal.OURS:
        raise _not_permitted(refused)
    verdict, code, text = REFUSALS[refused.why]
    if refused.why is Refusal.AMBIGUOUS:
        baseline.doubts += 1
        if baseline.doubts >= CONFIRMED_AFTER:
            verdict = likely(Fault.GPU_DRIVER)
    return Fact(baseline.uuid, code, verdict, f"GPU {baseline.uuid}: {text} ({refused})")


def _not_permitted(refused: Refused) -> CannotTell:
    return CannotTell(f"NVML: {refused}: the agent may not ask; run it privileged on the node")


def _usual(links: Mapping[str, frozenset[int]]) -> int:
    """How many links most GPUs have; 0 = there is no majority to compare with."""
    counts = Counter(len(up) for up in links.values())
    number, times = counts.most_common(1)[0] if counts else (0, 0)
    return number if times * 2 > len(links) else 0
