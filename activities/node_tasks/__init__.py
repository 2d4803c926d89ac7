"""Node tasks: short-lived pods pinned to one node, from creation to verdict."""
