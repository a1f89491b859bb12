"""The order in which answers leave, where it must be that of their requests (``preserve_ordering``).

Pure. An answer is held until every request that was admitted before has its own or has left; nothing is held twice or forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class AnswerOrder(Generic[Answer]):
    """The requests of one model that have no answer yet, by turn, and the answers that wait for those before."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, Answer | None] = OrderedDict()
        self._last_turn = 0

    def __len__(self) -> int:
        return len(self._turns)

    def admit(self) -> int:
        """The turn of the next request."""
        self._last_turn += 1
        self._turns[self._last_turn] = None
        return self._last_turn

    def answered(self, turn: int, answer: Answer) -> list[Answer]:
        """The answers that may leave now that this one is there, in order; it is dropped where its request has left."""
        if turn in self._turns:
            self._turns[turn] = answer
        return self._released()

    def left(self, turn: int) -> list[Answer]:
        """The answers that may leave now that this request has, in order."""
        self._turns.pop(turn, None)
        return self._released()

    def _released(self) -> list[Answer]:
        released: list[Answer] = []
        while self._turns:
            turn, answer = next(iter(self._turns.items()))
            if answer is None:
                break
            del self._turns[turn]
            released.append(answer)
        return released
