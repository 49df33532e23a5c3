"""Kernels, graphs and streams for NVIDIA GPUs: faster, never different."""
