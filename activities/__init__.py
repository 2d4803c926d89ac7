"""Side effects: one package for each outside system, each implements contracts of `workflows.contracts`."""
