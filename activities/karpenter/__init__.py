"""Karpenter: the NodeClaims behind nodes, their end, and who comes after."""
