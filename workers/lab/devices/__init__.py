"""Devices of the lab's simulated nodes: NVML, DCGM, kernel log and sysfs, driven by files."""
