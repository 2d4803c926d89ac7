"""What may be done about a fault, and when. Pure; talks to `model` only."""
