"""lookfurther record ENV [--name SET] [options]"""

from __future__ import annotations

import contextlib
import re
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import parse
from lookfurther.config import Config, Environment, replace, validate
from lookfurther.demos import catalog
from lookfurther.errors import ConfigError

if TYPE_CHECKING:
    from lookfurther.recorder.session import Recorder


@dataclass(frozen=True)
class RecordOptions:
    """Play an environment in the browser and keep the episodes as demonstrations."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = tyro.MISSING
    """environment id, such as ALE/MontezumaRevenge-v5"""
    name: str = ""
    """set the episodes join; empty: recorded/ and the environment's name"""
    host: str = "127.0.0.1"
    """address to serve the page at; others than this machine's let others play"""
    port: int = 0
    """port to serve it at; 0: any that is free"""
    seed: int = 0
    """of the set's first episode; each has the next one"""
    keys: tuple[str, ...] = ()
    """ACTION=KEY pairs, such as forward=up 5=space; not for Atari"""
    real_time: bool = False
    """do not wait for a key before each step; Atari never does"""
    idle: int = 0
    """action of a real-time step without a key; not for Atari"""
    open: bool = False
    """open the page in the browser"""
    environment: Environment = field(default_factory=Environment)


def run(words: list[str]) -> int:
    """Serve the page until it is stopped."""
    options = parse(RecordOptions, RecordOptions(), words, "lookfurther record")
    name = catalog.growing(options.name or default_name(options.env))
    validate(replace(Config(), env=options.env, demos=(name,), environment=options.environment))
    if not 0 <= options.seed < 2**31:
        raise ConfigError(f"--seed must be 0 ... 2^31 - 1, not {options.seed}")
    try:
        from lookfurther.recorder.server import serve
    except ImportError as error:
        raise ConfigError(f"record needs {error.name}: install lookfurther[record]") from None

    def announce(address: str) -> None:
        print(f"play {options.env} at {address}")
        print(f"episodes join the set {name}; Ctrl-C ends", flush=True)
        if options.open:
            webbrowser.open(address)

    with recorder(options, name) as source, contextlib.suppress(KeyboardInterrupt):
        serve(source, options.host, options.port, announce)
    return 0


@contextlib.contextmanager
def recorder(options: RecordOptions, name: str) -> Iterator[Recorder]:
    """What the options ask for, put together."""
    from lookfurther.recorder.dataset import Shelf, folder
    from lookfurther.recorder.games import make_game
    from lookfurther.recorder.journal import Journal
    from lookfurther.recorder.session import Recorder

    environment = options.environment
    with (
        contextlib.closing(Journal(folder(name) / "unfinished.jsonl")) as journal,
        contextlib.closing(
            make_game(options.env, environment, options.keys, options.real_time, options.idle)
        ) as game,
    ):
        shelf = Shelf(name, game.spec, environment)
        yield Recorder(game, environment, shelf, journal, options.seed)


def default_name(env: str) -> str:
    """recorded/MontezumaRevenge-v0 for ALE/MontezumaRevenge-v5."""
    last = re.split(r"[/:]", env)[-1]
    return f"recorded/{re.sub(r'-v[0-9]+$', '', last)}-v0"
