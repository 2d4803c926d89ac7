"""Processes and their wiring."""
