"""Triton kernels, CUDA graphs and streams, imported by `lookfurther.system.acceleration` only."""
