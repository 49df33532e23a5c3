"""lookfurther demos COMMAND ...: get, inspect and verify demonstrations"""

from __future__ import annotations

from lookfurther.cli.dispatch import Command, CommandGroup

COMMANDS = CommandGroup(
    "lookfurther demos",
    "Get, inspect and verify demonstrations.",
    __name__,
    {
        "list": Command("", "list all sets", "inspect:print_sets"),
        "show": Command(
            "NAME [--sheet FILE.png]",
            "show the origin, episodes and actions of a set",
            "inspect:show_set",
        ),
        "verify": Command(
            "NAME ...", "replay sets and print the first differences", "playback:verify_sets"
        ),
        "play": Command(
            "NAME OUT.gif|OUT.mp4", "write an animation of an episode", "playback:animate_set"
        ),
        "align": Command(
            "NAME --name NEW", "convert human play to one action per step", "align:align_set"
        ),
        "retime": Command(
            "NAME --name NEW", "change the waits of aligned play", "retime:retime_set"
        ),
        "perturb": Command(
            "NAME --name NEW",
            "add random actions to aligned play, and the way back after each",
            "perturb:perturb_set",
        ),
        "recover": Command(
            "RUN --demos SET --name NEW",
            "search ways from an agent's stuck places back to a demonstration",
            "recover:recover_agent",
        ),
        "import": Command(
            "FILE ... --name NAME", "import recordings of other tools", "transfer:import_files"
        ),
        "export": Command(
            "NAME FILE.npz", "write Atari episodes as action sequences", "transfer:export_set"
        ),
        "merge": Command("NAME ... --name NEW", "merge sets into a new one", "transfer:merge_sets"),
        "search": Command(
            "GAME --name NAME", "search an Atari game for demonstrations", "generate:search_demos"
        ),
        "bot": Command(
            "ENV --name NAME", "record MiniGrid's scripted expert", "generate:record_bot"
        ),
        "agent": Command("RUN --name NAME", "record a trained agent", "generate:record_agent"),
    },
)
run = COMMANDS.run
