import lookfurther  # noqa: F401  (sets how threads wait, before torch is loaded)
