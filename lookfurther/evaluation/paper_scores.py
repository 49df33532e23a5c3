"""The paper's scores: Tables 3 to 5 as printed, and the reference scores of each game."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from lookfurther.envs.naming import game_of

StartType = Literal["noop", "human"]  # the paper's two kinds of starts

START_TITLES: dict[StartType, str] = {"noop": "no-op starts", "human": "human starts"}
PAPER_AGENTS = {
    "rainbow": "Rainbow DQN",
    "dqfd": "DQfD",
    "apex_dqn": "Ape-X DQN",
    "apex_dqfd": "Ape-X DQfD",
    "apex_dqfd_deeper": "Ape-X DQfD (deeper)",
}
PAPER_PLAYERS = {"random": "Random", "human": "Avg. Human", "expert": "Expert"}


class ReferenceScores(NamedTuple):
    """The scores that a score of one game is compared with."""

    random: float
    human: float
    expert: float | None  # the best demonstration; known for no-op starts of the paper's games


class DemonstrationStatistics(NamedTuple):
    """Table 5: the expert's episodes of one game."""

    lowest_return: float
    highest_return: float
    transitions: int
    episodes: int


class PaperCorrection(NamedTuple):
    """A place where the paper's numbers contradict each other."""

    location: str
    printed: str
    corrected: str
    reason: str


PAPER_CORRECTIONS = (
    PaperCorrection(
        "Table 3, Random",
        "next to no-op scores",
        "used for human starts; no-op scores use the standard no-op random scores",
        "Table 2 follows from Table 3 only with this: the column belongs to human starts",
    ),
    PaperCorrection(
        "Video Pinball, Random",
        "20,452 (human starts), 16,256.9 (no-op starts)",
        "0 in both",
        "Table 2 follows from Table 3 only with this; 20,452 exceeds the average human's 17,668",
    ),
    PaperCorrection("Table 1, Ape-X DQN against Avg. Human", "31", "35", "counted in Table 3"),
    PaperCorrection("Table 1, DQfD against Ape-X DQfD", "11", "3", "counted in Table 3"),
    PaperCorrection("Table 1, Ape-X DQfD against Random", "40", "42", "counted in Table 3"),
    PaperCorrection(
        "Private Eye, Expert",
        "72,800 in Table 3, 74,456 in Table 5",
        "72,800",
        "Tables 1 and 3 compare with the value of Table 3",
    ),
)


def _read_table(name: str) -> list[dict[str, str]]:
    text = (files("lookfurther.evaluation") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def game_titles() -> dict[str, str]:
    """The paper's 42 games in its order: ROM name to title."""
    return {row["rom"]: row["game"] for row in _read_table("noop_starts.csv")}


@cache
def printed_scores(starts: StartType) -> dict[str, dict[str, float]]:
    """Table 3 or 4 as printed: game to agent or player to score, without empty cells."""
    columns = (*PAPER_AGENTS, *PAPER_PLAYERS)
    return {
        row["rom"]: {name: float(row[name]) for name in columns if row[name]}
        for row in _read_table(f"{starts}_starts.csv")
    }


@cache
def paper_demonstrations() -> dict[str, DemonstrationStatistics]:
    """Table 5: game to the expert's episodes."""
    return {
        row["rom"]: DemonstrationStatistics(
            float(row["least"]), float(row["most"]), int(row["transitions"]), int(row["episodes"])
        )
        for row in _read_table("demonstrations.csv")
    }


@cache
def reference_table(starts: StartType) -> dict[str, ReferenceScores]:
    """Corrected random, human and expert scores: of 57 games, of 42 for human starts."""
    table = printed_scores(starts)
    if starts == "noop":
        scores = {
            row["rom"]: ReferenceScores(
                float(row["random"]), float(row["human"]), table.get(row["rom"], {}).get("expert")
            )
            for row in _read_table("atari57.csv")
        }
    else:
        random = {game: row["random"] for game, row in printed_scores("noop").items()}
        scores = {
            game: ReferenceScores(random[game], row["human"], None) for game, row in table.items()
        }
    return scores | {"video_pinball": scores["video_pinball"]._replace(random=0.0)}


def reference_scores(env: str, starts: StartType) -> ReferenceScores | None:
    """The reference scores of an environment; None if no table has them."""
    return reference_table(starts).get(game_of(env))
