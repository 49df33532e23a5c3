"""Checkpoints, complete or absent, and the weights that other parts read from them."""
