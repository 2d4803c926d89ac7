"""What the devices of a node say: kernel log, NVML, DCGM and network, as readings."""
