"""Which accesses of different threads must be ordered, and what orders them."""
