"""Tests of graphs that are compiled to kernels."""
