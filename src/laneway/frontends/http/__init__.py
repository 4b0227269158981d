"""HTTP/1.1 itself, for the front ends that speak it: connections, heads, bodies, responses, limits. What a request
means is an Application's (protocol.py); several share one port, and the first that takes a head answers it."""
