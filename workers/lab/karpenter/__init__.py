"""Karpenter in the lab: the real program over its kwok provider, with machines of the lab's kind.

`process` runs it, `instance_types` says what it can buy, `node_pools` makes pools to buy into. The
nodes that it makes are played by `workers.lab.kubelet` (`adoption`).
"""
