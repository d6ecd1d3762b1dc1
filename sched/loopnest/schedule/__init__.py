"""Schedule primitives: each validates, computes new domains, commits in one transaction."""
