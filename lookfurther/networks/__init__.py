"""Action-value networks."""
