"""Equations of other systems: PopArt, constrained TD, C51."""
