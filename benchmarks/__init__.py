"""Measurements of Laneway beside other systems: same machine, same run, same load generator.

machine.py      cores, /proc figures, the disk's sync time
servers.py      starts and stops what is measured, each pinned to the server core
load.py         the load generator: raw sockets on one epoll loop, no protocol of its own
http_load.py    HTTP requests made beforehand, replies framed by Content-Length
laneway_load.py what Laneway's clients say: publish, dequeue, ack
client_load.py  publishing as laneway.client does it
amqp_messages.py, amqp_load.py, amqp_frames.py    AMQP: distinct messages made beforehand, clients, frames
postgres.py     the SKIP LOCKED queue
report.py       rounds → medians, spread, ratios; table and JSON
__main__.py     make bench           scale.py    make bench-scale
"""
