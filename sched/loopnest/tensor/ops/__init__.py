"""The public functions of the math: they take TensorViews, scalars and numbers."""
