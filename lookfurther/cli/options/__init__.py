"""Options of the commands: parsing, their types, presets and settings, and their documentation."""
