"""Targets: texts of a loop nest, compilers, drivers, the interpreter; none reads lowering."""
