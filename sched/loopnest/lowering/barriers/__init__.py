"""Barriers: which accesses of different threads must be ordered, and by which barrier."""
