import lookfurther  # noqa: F401  (says how threads wait, before torch is loaded)
