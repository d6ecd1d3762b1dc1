"""Kernels that leave Python: sources, libraries and launchers with a manifest, and back again."""
