"""NVRTC and the tools of a CUDA toolkit that need no GPU."""
