"""The environment of a set as a Gymnasium EnvSpec, for Minari and other programs.

This package never reads such a spec: it uses its own description of the environment.
"""

from __future__ import annotations

import dataclasses

from gymnasium.envs.registration import WrapperSpec

from lookfurther.demos.metadata import DemoSetDescription
from lookfurther.envs.factory import find_env_spec
from lookfurther.errors import LookFurtherError

MAX_ATARI_STEPS = 27_000  # half an hour with four frames per step


def env_spec_json(description: DemoSetDescription) -> str | None:
    """The EnvSpec as JSON; None if the environment is not registered or not plain data.

    The EnvSpec of an Atari game shows the whole grey screen, with the same frames per step. The
    planes of a set would need OpenCV.
    """
    origin = description.origin
    try:
        spec = dataclasses.replace(find_env_spec(description.spec.env))
        if origin.game:
            spec.kwargs = {
                "game": origin.game,
                "obs_type": "grayscale",
                "frameskip": origin.repeat,
                "repeat_action_probability": origin.sticky,
                "full_action_space": True,
            } | _variant_kwargs(description)
            spec.max_episode_steps = MAX_ATARI_STEPS
        spec.additional_wrappers = tuple(_wrapper_spec(name) for name in origin.wrappers)
        return spec.to_json()
    except (LookFurtherError, ValueError, TypeError):
        return None


def _variant_kwargs(description: DemoSetDescription) -> dict[str, int]:
    """The mode and difficulty of the first episode, if they are not the default."""
    log_metadata = description.episodes[0].reel
    settings = log_metadata.variant._asdict() if log_metadata else {}
    return {name: value for name, value in settings.items() if value is not None}


def _wrapper_spec(name: str) -> WrapperSpec:
    return WrapperSpec(name.partition(":")[2], name, {})
