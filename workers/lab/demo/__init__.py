"""The demo: ten things befall fifteen simulated nodes, are seen through, and judged from outside.

Owns the cast, the scene, what is shown and the verdict. Uses fleetmend as its users do: watch, worker
and agents run because the Helm chart says so, commands are started as programs with the operator's
account, and what came of it is read from Temporal's histories, the API server and its audit log.
"""
