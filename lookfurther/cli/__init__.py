"""The commands of `lookfurther`, a module each, whose `run` takes the words after the name."""
