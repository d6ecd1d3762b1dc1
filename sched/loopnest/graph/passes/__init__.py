"""Passes: their infrastructure, and one module a pass.

`manager` runs passes, `compile_target` says what for, `instruments` watch them.
"""
