"""Schedule primitives: each validates, computes new domains, and commits through one funnel."""
