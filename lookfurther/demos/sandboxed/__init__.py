"""Readers that only the helper process of demos/sandbox.py imports."""
