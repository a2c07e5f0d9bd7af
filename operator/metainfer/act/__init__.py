"""Writes: Jobs, node labels, portraits, our fields on targets, Events, status. Carries out what was decided, decides nothing."""
