"""The machine record (GPUMachine) of each physical machine."""
