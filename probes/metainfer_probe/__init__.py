"""The measuring side of meta infer: runs in Jobs next to the cards, knows nothing of Kubernetes."""
