"""The math: tensors, their domains and definitions, the fusion that holds them."""
