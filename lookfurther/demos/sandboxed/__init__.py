"""Readers of files from other people. Only the subprocess of demos/sandbox.py imports them."""
