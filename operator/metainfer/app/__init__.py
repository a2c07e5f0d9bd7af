"""Where everything is joined and started. Knows all parts, and none of their rules."""
