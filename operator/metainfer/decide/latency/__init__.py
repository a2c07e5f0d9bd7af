"""From a server's own latency counters to what can be said about a window: figures, and by name what is wrong with them. Pure.

No verdict is given here: whether a service became slower is decided by who compares readings. ``observe`` fills ``ServedSeries``.
"""
