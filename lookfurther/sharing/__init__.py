"""Agents and demonstration sets on the Hugging Face Hub."""
