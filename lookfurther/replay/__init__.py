"""Prioritized replay of agent and expert transitions."""
