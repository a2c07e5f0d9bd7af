"""Keeps a decision true once it is in place: what makes it doubtful, what is checked before anything is done, and how often. Pure."""
