"""Actors on other machines: everything that `train --cluster` adds to a run."""
