"""The kernel that a user holds: `lower` and `compile`, and what a kernel can be asked."""
