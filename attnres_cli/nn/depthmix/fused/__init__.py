"""Fused kernels for NVIDIA GPUs, and for Triton's interpreter, where tests check them."""
