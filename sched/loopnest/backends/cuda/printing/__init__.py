"""CUDA C++ text."""
