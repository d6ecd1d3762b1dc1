"""Indices, values and predicates of every statement."""
