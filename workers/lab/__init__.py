"""A real control plane on this machine with simulated nodes; not part of the image."""
