"""What the texts in C and in CUDA C++ share."""
