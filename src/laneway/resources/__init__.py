"""What a process has only so much of, and how it is shared out: descriptors, connections, memory."""
