"""The command `fleetmend`."""
