"""The experiments of docs/experiments.md: tasks, demonstrations, suites and their results."""
