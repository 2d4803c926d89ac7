"""From what detectors saw to the fault class that policy gives it. Pure; talks to `model` only."""
