"""Triton kernels, CUDA graphs and side streams; imported by `lookfurther.system.acceleration` alone."""
