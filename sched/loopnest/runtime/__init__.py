"""Running kernels: argument checks and launches, the C compiler, NVRTC, the disk cache."""
