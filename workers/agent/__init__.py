"""The agent's process on each GPU node."""
