"""Pure vocabulary and decisions of fleetmend.

Owns every word the product uses (findings, faults, phases, marks, policy) and every decision
that can be taken from values alone. Owns no clock, no I/O and no Temporal: `now` is passed in,
what the world looks like is passed in. Everything here is passed through the workflow sandbox,
so no module holds mutable state (a test checks it).
"""
