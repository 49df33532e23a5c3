"""Evaluation of agents, and the scores of the paper."""
