"""Threads of a block as loops: fission at barriers, context arrays, interchange."""
