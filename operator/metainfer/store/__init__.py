"""Samples and decisions that outlive Jobs and restarts. Knows SQL, nothing of Kubernetes and nothing of what is decided."""
