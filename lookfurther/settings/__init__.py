"""Reading settings: bounds, decoding, renamed settings."""
