"""lookfurther presets"""

from __future__ import annotations

from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, SCALES


def run(args: list[str]) -> int:
    """Print the presets and scales with the settings they change."""
    if args:
        raise ConfigError(f"presets has no options: remove {args[0]!r}")
    for title, table in (("presets", PRESETS), ("scales, --scale", SCALES)):
        print(f"{title}:")
        for name, (place, overrides) in table.items():
            print(f"  {name:18}{place}")
            for setting, value in overrides.items():
                print(f"  {'':20}{setting.replace('__', '.')} = {value}")
    return 0
