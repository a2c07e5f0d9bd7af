"""The only way to the API server: one narrow async port with typed errors. Knows nothing of what is decided."""
