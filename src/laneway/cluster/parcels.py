"""What two processes say to each other on a link: a kind, and what belongs to it.

    edge ─▶ leader    HELLO version, edge                  who is there; the number of an edge is its own
                      ASK number, request                  number 0: it has no answer
                      WITHDRAW number                      it is answered with what there is, perhaps nothing
                      OPEN session                         pushes for it are wanted
                      SEEN count                           it has so many more changes
    leader ─▶ edge    WELCOME limits, image                the topology as it is now; CHANGED follows it
                      ANSWER number, answer
                      PUSHED session, pushes
                      CHANGED change
                      HEALTH health                        as Broker.health; sent when it is another

An answer comes behind the changes of the topology that its request has caused; if it changed something, when every edge
has said that it has them (barrier.py).
"""

from __future__ import annotations

HELLO, ASK, WITHDRAW, OPEN, WELCOME, ANSWER, PUSHED, CHANGED, HEALTH, SEEN = range(10)

#: Two processes of one server are of one version. What would misread the other is refused.
VERSION = 1

#: Bits of a session's number that are the edge's own count; the number of the edge is above them.
SESSION_BITS = 32
