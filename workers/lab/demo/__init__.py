"""The demo: four faults on eight simulated nodes, seen through, and judged from outside.

Owns the cast, the scene, what is shown and the verdict. Uses fleetmend as its users do: watch,
worker and commands are started as programs with the accounts of deploy/chart, and what came of it
is read from Temporal's histories, the API server and its audit log.
"""
