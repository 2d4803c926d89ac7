"""Bursts: many lines of one fault become one reading with a count.

Owns the silence that ends a burst, how often a growing count is told again, and the fold of a
fault's echoes into its root. Time is monotonic seconds, passed in: a step of the wall clock changes
nothing. Pure; used by the kernel-log source.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from activities.devices.reading import Reading
from workflows.model.detection.xid import Cause, is_echo

SILENCE_S = 180.0
"""A burst ends after so long without a line (NVIDIA Fleet Intelligence closes one after 3 min)."""
RETELL_S = 10.0
"""A count that grows is told again at most this often; ours: the annotation is a PATCH."""
MAX_BURSTS = 256
"""Open bursts; beyond, the one that was silent longest is closed. 16 GPUs with 8 kinds each fit."""


@dataclass
class _Burst:
    cause: Cause
    reading: Reading
    last: float
    told_at: float
    count: int = 1
    told: int = 1


class Bursts:
    """The bursts that are open."""

    def __init__(self) -> None:
        self._open: dict[str, _Burst] = {}

    def note(self, reading: Reading, cause: Cause, now: float) -> Reading | None:
        """What is to be told because of one more line: at once for the first of a fault.

        Returns:
            None while the line is one of many, or an echo of another fault.
        """
        burst = self._open.get(reading.key)
        if burst is not None and now - burst.last > SILENCE_S:
            burst = None
        burst = burst or self._root_of(cause, now)
        if burst is None:
            self._make_room()
            self._open[reading.key] = _Burst(cause, reading, now, now)
            return reading
        return self._counted(burst, now)

    def again(self, key: str, now: float) -> Reading | None:
        """As `note`, for one more line of a burst that is open."""
        return self._counted(self._open[key], now)

    @property
    def is_empty(self) -> bool:
        """True while no burst is open."""
        return not self._open

    def is_open(self, key: str, now: float) -> bool:
        """True while the burst of that key goes on, in its own name or as another's echo."""
        burst = self._open.get(key)
        return burst is not None and now - burst.last <= SILENCE_S

    def due(self, now: float) -> Iterator[Reading]:
        """Counts that grew and were not told for `RETELL_S`; ends the bursts that are over."""
        for key, burst in list(self._open.items()):
            told = self._told_again(burst, now)
            if told is not None:
                yield told
            elif now - burst.last > SILENCE_S:
                del self._open[key]

    def _counted(self, burst: _Burst, now: float) -> Reading | None:
        burst.last = now
        burst.count += 1
        return self._told_again(burst, now)

    def _told_again(self, burst: _Burst, now: float) -> Reading | None:
        if burst.count == burst.told or now - burst.told_at < RETELL_S:
            return None
        burst.told, burst.told_at = burst.count, now
        return replace(burst.reading, count=burst.count)

    def _root_of(self, cause: Cause, now: float) -> _Burst | None:
        for burst in self._open.values():
            if now - burst.last <= SILENCE_S and is_echo(cause, burst.cause):
                return burst
        return None

    def _make_room(self) -> None:
        if len(self._open) >= MAX_BURSTS:
            oldest = min(self._open, key=lambda key: self._open[key].last)
            del self._open[oldest]
