"""Stand-ins for kubelets: simulated nodes as plain API clients."""
