"""lookfurther presets"""

from __future__ import annotations

from dataclasses import dataclass

from lookfurther.presets import PRESETS, SCALES
from lookfurther.settings.tuned import read_tuned_settings
from lookfurther.system.formatting import format_score


@dataclass(frozen=True)
class PresetsOptions:
    """List presets, scales and tuned settings with the settings that they change."""


def run(options: PresetsOptions) -> int:
    """Print presets, scales and tuned settings with the settings that they change."""
    for title, table in (("presets", PRESETS), ("scales, --scale", SCALES)):
        print(f"{title}:")
        for name, (place, overrides, _) in table.items():
            print(f"  {name:18}{place}")
            for setting, value in overrides.items():
                print(f"  {'':20}{setting.replace('__', '.')} = {value}")
    print_tuned_settings()
    return 0


def print_tuned_settings() -> None:
    """Print the environments with tuned settings, their scores and how to get demonstrations."""
    print("tuned settings, lookfurther train tuned --env ENV:")
    for env, tuned in read_tuned_settings().items():
        print(f"  {env}: score {format_score(tuned.score)} ({tuned.score_type})")
        print(
            f"  {'':20}{tuned.preset} --scale {tuned.scale}, {tuned.minutes:g} min, {tuned.machine}"
        )
        for command in tuned.demo_commands:
            print(f"  {'':20}first: {command}")
        for setting, value in tuned.settings.items():
            print(f"  {'':20}{setting} = {value}")
