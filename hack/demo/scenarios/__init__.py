"""What happens after the first placement, played for real on the local cluster: disturbances, and whether the right thing came of them.

Everything is read from the API server and from a Prometheus that scrapes the servers, as a user would see it; nothing looks into the
operator. Clocks are short (windows of 20 s instead of 15 min): what is shown is the order of things and that nothing else happens.
"""
