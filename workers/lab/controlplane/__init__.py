"""The lab's control plane: real etcd, kube-apiserver, controllers, scheduler and Temporal.

Owns finding or building the programs, the PKI, the supervisor that is the parent of all processes,
and the installation of fleetmend's manifests. Does not simulate nodes (`workers.lab.kubelet`).
Callers use `lab.py` (start, stop, status, `Lab`), `install.py`, and `pki.node_certificate`.
"""
