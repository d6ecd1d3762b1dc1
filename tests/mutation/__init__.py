"""Mutants of loop nests, judged: see `tools/mutate.py`."""
