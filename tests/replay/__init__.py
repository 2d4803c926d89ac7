"""Recorded histories of the workflows, and the proof that today's code still replays them."""
