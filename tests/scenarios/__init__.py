"""Whole episodes on the real control plane: what must hold, named after it."""
