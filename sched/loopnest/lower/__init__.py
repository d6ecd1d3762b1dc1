"""Lowering: one pass a file, collected by `pipeline`."""
