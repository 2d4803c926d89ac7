"""The agent: its parts alone, and as a real process on a simulated node."""
