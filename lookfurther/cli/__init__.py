"""The commands of `lookfurther`: one module each, whose `run` gets the arguments after its name."""
