"""The recorder: a browser page to play an environment and save the episodes."""
