"""Player input: the buttons held on the page and the actions they select."""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from lookfurther.recorder.games import PlayableGame
from lookfurther.recorder.protocol import PageMessage


class PlayerInput:
    """Held buttons and, in a turn-based game, a queue of actions."""

    def __init__(self, game: PlayableGame) -> None:
        self._game = game
        self.release()

    def release(self) -> None:
        """Release all buttons and clear the queue."""
        self._held: Set[str] = frozenset()
        self._pressed: Set[str] = frozenset()  # since the last step, even if released since
        self._queued_actions: deque[int] = deque()
        self._received_number = 0
        self.answered_number = 0  # of the last "keys" message that a step has used

    def update(self, message: PageMessage) -> Set[str]:
        """Store the held buttons and return the newly pressed ones."""
        pressed = message.held_buttons - self._held
        self._held, self._received_number = message.held_buttons, message.number
        self._pressed |= pressed
        return pressed

    def queue_actions(self, buttons: Set[str]) -> None:
        """Queue one action for each button."""
        self._queued_actions.extend(
            self._game.action_from_buttons({name}) for name in sorted(buttons)
        )

    def next_action(self) -> int | None:
        """Return the action of the next step; None if a turn-based game has none queued."""
        if not self._game.is_turn_based:
            action = self._game.action_from_buttons(self._held | self._pressed)
        elif self._queued_actions:
            action = self._queued_actions.popleft()
        else:
            return None
        self._pressed = frozenset()
        self.answered_number = self._received_number
        return action
