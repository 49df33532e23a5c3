"""The paper's scores as data: Tables 3 to 5 as printed, and what scores are measured against."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from lookfurther.envs.naming import game_of

StartType = Literal["noop", "human"]  # no-op starts and human starts, the paper's two regimes

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
    """What a score of one game is measured against."""

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
    """A place where the printed numbers do not agree with one another."""

    location: str
    printed: str
    corrected: str
    reason: str


PAPER_CORRECTIONS = (
    PaperCorrection(
        "Table 3, Random",
        "beside no-op scores",
        "used for human starts; no-op scores take the standard no-op random scores",
        "only so does Table 3 give Table 2: the column is that of human starts",
    ),
    PaperCorrection(
        "Video Pinball, Random",
        "20,452 (human starts), 16,256.9 (no-op starts)",
        "0 in both",
        "only so does Table 3 give Table 2; 20,452 is more than the average human's 17,668",
    ),
    PaperCorrection("Table 1, Ape-X DQN against Avg. Human", "31", "35", "counted in Table 3"),
    PaperCorrection("Table 1, DQfD against Ape-X DQfD", "11", "3", "counted in Table 3"),
    PaperCorrection("Table 1, Ape-X DQfD against Random", "40", "42", "counted in Table 3"),
    PaperCorrection(
        "Private Eye, Expert",
        "72,800 in Table 3, 74,456 in Table 5",
        "72,800",
        "Table 3's is the one that Tables 1 and 3 compare with",
    ),
)


def _read_table(name: str) -> list[dict[str, str]]:
    text = (files("lookfurther.evaluation") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def game_titles() -> dict[str, str]:
    """The paper's 42 games in its order, as ROM name and title."""
    return {row["rom"]: row["game"] for row in _read_table("noop_starts.csv")}


@cache
def printed_scores(starts: StartType) -> dict[str, dict[str, float]]:
    """Table 3 or 4 as printed: game to AGENTS and PLAYERS to score, empty cells left out."""
    columns = (*PAPER_AGENTS, *PAPER_PLAYERS)
    return {
        row["rom"]: {name: float(row[name]) for name in columns if row[name]}
        for row in _read_table(f"{starts}_starts.csv")
    }


@cache
def paper_demonstrations() -> dict[str, DemonstrationStatistics]:
    """Table 5: game to what the expert played there."""
    return {
        row["rom"]: DemonstrationStatistics(
            float(row["least"]), float(row["most"]), int(row["transitions"]), int(row["episodes"])
        )
        for row in _read_table("demonstrations.csv")
    }


@cache
def reference_table(starts: StartType) -> dict[str, ReferenceScores]:
    """Random, human and expert scores with the CORRECTIONS: 57 games, of human starts the 42."""
    table = printed_scores(starts)
    if starts == "noop":
        found = {
            row["rom"]: ReferenceScores(
                float(row["random"]), float(row["human"]), table.get(row["rom"], {}).get("expert")
            )
            for row in _read_table("atari57.csv")
        }
    else:
        random = {game: row["random"] for game, row in printed_scores("noop").items()}
        found = {
            game: ReferenceScores(random[game], row["human"], None) for game, row in table.items()
        }
    return found | {"video_pinball": found["video_pinball"]._replace(random=0.0)}


def reference_scores(env: str, starts: StartType) -> ReferenceScores | None:
    """What scores of an environment are measured against; None where no table knows it."""
    return reference_table(starts).get(game_of(env))
