"""The environment of a set in Gymnasium's words, for Minari and others that build it from there.

Nothing here reads such a spec: our own description of the environment is what we go by.
"""

from __future__ import annotations

import dataclasses

from gymnasium.envs.registration import WrapperSpec

from lookfurther.demos.metadata import DemoSetDescription
from lookfurther.envs.factory import find_env_spec
from lookfurther.errors import LookFurtherError

MAX_ATARI_STEPS = 27_000  # steps: half an hour of four frames a step


def env_spec_json(description: DemoSetDescription) -> str | None:
    """JSON of Gymnasium's EnvSpec; None where the environment is not registered or not plain data.

    An Atari game shows its whole grey screen there, in steps of the same frames: to make the
    planes of it that a set holds would need OpenCV.
    """
    how = description.origin
    try:
        spec = dataclasses.replace(find_env_spec(description.spec.env))
        if how.game:
            spec.kwargs = {
                "game": how.game,
                "obs_type": "grayscale",
                "frameskip": how.repeat,
                "repeat_action_probability": how.sticky,
                "full_action_space": True,
            } | _variant_kwargs(description)
            spec.max_episode_steps = MAX_ATARI_STEPS
        spec.additional_wrappers = tuple(_wrapper_spec(name) for name in how.wrappers)
        return spec.to_json()
    except (LookFurtherError, ValueError, TypeError):
        return None


def _variant_kwargs(description: DemoSetDescription) -> dict[str, int]:
    """The mode and difficulty of the first episode, where they were chosen."""
    reel = description.episodes[0].reel
    chosen = reel.variant._asdict() if reel else {}
    return {name: value for name, value in chosen.items() if value is not None}


def _wrapper_spec(name: str) -> WrapperSpec:
    return WrapperSpec(name.partition(":")[2], name, {})
