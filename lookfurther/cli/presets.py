"""lookfurther presets"""

from __future__ import annotations

from dataclasses import dataclass

from lookfurther.presets import PRESETS, SCALES


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets and scales with the settings that they change."""


def run(options: PresetsOptions) -> int:
    """Print the presets and scales with the settings they change."""
    for title, table in (("presets", PRESETS), ("scales, --scale", SCALES)):
        print(f"{title}:")
        for name, (place, overrides, _) in table.items():
            print(f"  {name:18}{place}")
            for setting, value in overrides.items():
                print(f"  {'':20}{setting.replace('__', '.')} = {value}")
    return 0
