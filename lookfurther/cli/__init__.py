"""The commands of `lookfurther`, one module each. `run` gets the arguments after the command."""
