"""GPUs, their memory, and the packages that reach them."""
