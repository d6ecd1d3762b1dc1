"""Reductions that several threads or blocks take part in."""
