"""The target "cuda"."""
