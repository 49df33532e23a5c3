"""Adam, RMSProp, and the choice between them."""
