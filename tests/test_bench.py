"""lookfurther bench: every measurement is made with the parts of a run, and the table says so."""

from __future__ import annotations

import math

from lookfurther.commands.bench import measure, table
from lookfurther.presets import preset


def test_every_measurement_gives_figures_and_the_table_their_ratios() -> None:
    config = preset(
        "apex-dqfd",
        "small",
        env="CartPole-v1",
        demos=("noise",),
        actor__lanes=4,
        replay__capacity=2_000,
        network__hidden=(16,),
        run__device="cpu",
    )
    figures = measure(config, seconds=0.05)
    names = ("environments", "actor", "learner", "replay", "together", "first_update", "memory")
    for name in names:
        for what, value in figures[name].items():
            assert math.isfinite(value), (name, what)
            assert value > 0 or what.startswith("wait"), (name, what)
    text = table(figures)
    share = figures["actor"]["steps"] / figures["environments"]["steps"]
    assert f"{share:.0%} of the environments alone" in text
    assert text.splitlines()[-1].startswith("what limits: the ")
