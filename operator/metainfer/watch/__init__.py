"""The edge to the cluster: events become facts in a cache and keys in a queue. Decides nothing and writes nothing."""
