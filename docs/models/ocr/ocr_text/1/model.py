"""Symbols to text (CTC, greedy): repeated ones count once, number 0 is none. Lines that the recogniser is not sure of are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core_grpc.python_model import ModelContext, Request

BUCKETS = (320, 640, 1280)
LEAST_SCORE = 0.5


class Model:
    """See the module's text."""

    def initialise(self, context: ModelContext) -> None:
        """Reads the alphabet that build.py took from the recogniser."""
        text = (Path(context.directory) / "characters.txt").read_text(encoding="utf-8")
        self.characters = ["", *text.split("\n"), " "]

    def execute(self, requests: Sequence[Request]) -> list[Mapping[str, NDArray[np.generic]]]:
        """One entry for each request."""
        return [self.one(request.inputs) for request in requests]

    def one(self, inputs: Mapping[str, NDArray[np.generic]]) -> Mapping[str, NDArray[np.generic]]:
        """The lines of one page."""
        lines = [
            self.line(inputs[f"SYMBOLS{BUCKETS[bucket]}"][row], inputs[f"CONFIDENCES{BUCKETS[bucket]}"][row])
            for bucket, row in inputs["PLACE"]
        ]
        kept = [at for at, (text, score) in enumerate(lines) if text.strip() and score >= LEAST_SCORE]
        texts = np.array([lines[at][0].encode() for at in kept], dtype=object)
        scores = np.array([lines[at][1] for at in kept], np.float32)
        return {"TEXT": texts, "SCORE": scores, "BOX": inputs["BOXES"][kept]}

    def line(self, symbols: NDArray[np.int64], confidences: NDArray[np.float32]) -> tuple[str, float]:
        """One line and how sure the recogniser is of it: the mean over its symbols."""
        begins = np.append(True, symbols[1:] != symbols[:-1]) & (symbols != 0)
        text = "".join(self.characters[symbol] for symbol in symbols[begins])
        return text, float(confidences[begins].mean()) if begins.any() else 0.0
