"""What every door is given and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass


class InferError(Exception):
    """The call failed; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Call:
    """One photograph for one model."""

    model: str
    photo: bytes
    photo_name: str
    top: int
    """How many classes are wanted."""
    url: str
    """Of the edge."""
    grpc_address: str
    """Of the node's own listener."""
    timeout_s: float
    key: str = ""
    """The API key; empty for none."""

    @property
    def credentials(self) -> dict[str, str]:
        """Headers, or metadata, that show the key."""
        return {"x-api-key": self.key} if self.key else {}


@dataclass(frozen=True, slots=True)
class ClassScore:
    """One class, by the name and the number that the model has for it."""

    label: str
    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for the photograph."""

    model: str
    version: str
    classes: tuple[ClassScore, ...]
    """Best first."""


def best(scores: list[float], labels: dict[int, str], top: int) -> tuple[ClassScore, ...]:
    """The ``top`` highest scores with their labels (empty where there is none); of equal ones the lower index comes first."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return tuple(ClassScore(labels.get(index, ""), index, scores[index]) for index in order[:top])
