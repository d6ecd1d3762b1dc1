"""Texts of a loop nest: the nest itself, C, CUDA C++; each a pure function of a `kir.Program`."""
