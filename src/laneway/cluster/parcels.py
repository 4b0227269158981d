"""What two processes say to each other on a link: a kind, and what belongs to it.

    edge ─▶ leader    HELLO edge                           the number of an edge is its own
                      ASK number, request                  number 0: it has no answer
                      WITHDRAW number                      it is answered with what there is, perhaps nothing
                      OPEN session                         pushes for it are wanted
                      SEEN count                           it has so many more changes
                      HEARD                                that a publish was refused, and all behind it
    leader ─▶ edge    IMAGE part                           of the topology as it is at the HELLO; changes that come
                                                           in between are later ones
                      WELCOME limits, credit, health       the image is whole
                      ANSWER number, answer
                      PUSHED session, pushes
                      CHANGED change
                      HEALTH health                        as Broker.health; sent when it is another

Credit is how many bytes of requests an edge may have under way: sent, and not answered. It holds back what is more.

A leader that cannot publish now refuses what came behind as well, until the edge has heard of it: what is sent again
later must not be overtaken.

An answer comes behind the changes of the topology that its request has caused; if it changed something, when every edge
has said that it has them (barrier.py).
"""

from __future__ import annotations

HELLO, ASK, WITHDRAW, OPEN, SEEN, HEARD, IMAGE, WELCOME, ANSWER, PUSHED, CHANGED, HEALTH = range(12)

#: Bits of a session's number that are the edge's own count; the number of the edge is above them.
SESSION_BITS = 32
