"""Faults that can be injected into simulated nodes, by name."""
