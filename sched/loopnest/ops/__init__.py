"""The math: functions that take TensorViews, scalars and numbers, and define TensorViews."""
