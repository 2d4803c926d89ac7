"""The lab as tests see it: one real control plane, processes to start and kill, and witnesses."""
