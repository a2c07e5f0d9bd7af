"""The kinds users write and read. Pure types: no cluster, no clock."""
