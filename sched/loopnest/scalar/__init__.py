"""Types, scalar expressions and the arithmetic of indices: what everything else is made of."""
