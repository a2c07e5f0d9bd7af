"""API version v1alpha1 of group metainfer.dev."""
