"""Deterministic: what runs in Temporal's sandbox, and the pure model below it. Imports nothing."""
