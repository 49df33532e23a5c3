import lookfurther  # noqa: F401  (sets the wait policy of threads before torch is loaded)
