"""Addresses of pods that a process of this machine can bind.

Owns one network 127.N.0.0/16 for each lab, so that pods of two labs may listen on the same port, and
the handing out of its addresses. Linux answers on all of 127.0.0.0/8 without being asked to.
"""

from __future__ import annotations

import random
import socket
from typing import Final

CLAIM_PORT: Final = 10250
"""A kubelet's port: whoever holds it on a network's first address has the network."""
FIRST, LAST = 2, 254
"""Of N: 127.0 and 127.1 are in common use (resolvers)."""
HOSTS: Final = 254 * 250


class NoNetworkLeft(Exception):
    """Every network is held by another lab on this machine."""

    def __init__(self) -> None:
        super().__init__(
            f"all networks 127.{FIRST}.0.0 to 127.{LAST}.0.0 are taken by labs of this machine: "
            "end some of them (fleetmend lab down)"
        )


class PodAddresses:
    """One lab's addresses. Made by `claim`; the network is free again after `close`."""

    def __init__(self, number: int, claim: socket.socket) -> None:
        self._number = number
        self._claim = claim
        self._last = 0

    @classmethod
    def claim(cls) -> PodAddresses:
        """A network that no other lab on this machine has.

        Raises:
            NoNetworkLeft: there is none.
        """
        # In any order: pods of an earlier process of this lab keep their addresses.
        for number in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                held.bind((f"127.{number}.0.1", CLAIM_PORT))
            except OSError:
                held.close()
            else:
                return cls(number, held)
        raise NoNetworkLeft

    def next(self) -> str:
        """An address that no pod of this lab had lately."""
        self._last = self._last % HOSTS + 1
        return f"127.{self._number}.{1 + self._last // 250}.{1 + self._last % 250}"

    def close(self) -> None:
        """Give the network back."""
        self._claim.close()
