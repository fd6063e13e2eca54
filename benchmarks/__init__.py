"""How fast evaluation is, beside its peers: `rollout bench` runs the workloads (see README.md)."""
