"""Which loops there are, what they run over, and the tree that they make."""
