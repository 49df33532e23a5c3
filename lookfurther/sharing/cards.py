"""The card of a demonstration set: what the Hub shows about it."""

from __future__ import annotations

import json

from lookfurther.demos.metadata import DemoSetDescription
from lookfurther.report.markdown import code_span, escape_markdown, markdown_table
from lookfurther.system.printable import make_printable


def render_set_card(name: str, description: DemoSetDescription) -> str:
    """Markdown with the YAML header of the Hub."""
    spec, episodes = description.spec, description.episodes
    tags = ["reinforcement-learning", "demonstrations", "minari", spec.env]
    header = "\n".join(f"- {json.dumps(make_printable(tag))}" for tag in tags)
    scores = [episode.score for episode in episodes]
    verified = sum(episode.is_verified for episode in episodes)
    facts = [
        ("environment", code_span(spec.env)),
        ("observations", f"{spec.observation_shape}, {spec.dtype}"),
        ("actions", f"{spec.actions}"),
        ("episodes", f"{len(episodes)}"),
        ("steps", f"{sum(episode.steps for episode in episodes):,}"),
        ("returns", f"{min(scores):,.5g} to {max(scores):,.5g}" if scores else "none"),
        ("verified by replay", f"{verified} of {len(episodes)}"),
        ("author", escape_markdown(description.author)),
        ("recorded with", escape_markdown(description.origin.library)),
    ]
    parts = [
        f"---\ntags:\n{header}\n---",
        f"# {escape_markdown(name)}",
        "Demonstrations for lookfurther, as a [Minari](https://minari.farama.org) dataset.",
        markdown_table(("", ""), facts),
        "## How to use them",
        "```sh\nlookfurther pull OWNER/NAME --kind demos\n```",
    ]
    return "\n\n".join(parts) + "\n"
