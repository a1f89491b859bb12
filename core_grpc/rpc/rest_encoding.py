"""HTTP content encodings of the REST doors: which one a request has, and which one its answer gets.

Only successful inference answers are ever compressed: stock clients read everything else as it comes, whatever they say they accept.
"""

from __future__ import annotations

from core_grpc.errors import Unsupported, quoted
from core_grpc.rpc.compression import ENCODINGS

OFFERED = "gzip, deflate"

_SMALLEST_WEIGHT = 0.001
"""The smallest that is not "never" (RFC 9110, 12.4.2)."""


def request_encoding(header: str) -> str:
    """By what a body is compressed, from its Content-Encoding; empty for not at all.

    Raises:
        Unsupported: by something else, or more than once.
    """
    name = header.strip().lower()
    if name in ("", "identity"):
        return ""
    name = name.removeprefix("x-")  # RFC 9110, 8.4.1.3: x-gzip is gzip.
    if name not in ENCODINGS:
        raise Unsupported(f"Content-Encoding {quoted(header, 40)} is not offered: wanted gzip, deflate or none")
    return name


def answer_encoding(header: str) -> str:
    """By what an answer is to be compressed, from Accept-Encoding with its weights; empty for not at all.

    Of encodings that weigh the same gzip wins, then deflate. One that is not named and not covered by ``*`` is not used.
    """
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _weight(parameters)
    others = weights.get("*", 0.0)
    best = max(ENCODINGS, key=lambda name: weights.get(name, others))
    weight = weights.get(best, others)
    return best if weight >= _SMALLEST_WEIGHT and weight >= weights.get("identity", 0.0) else ""


def _weight(parameters: str) -> float:
    """The value of ``q``; 1 without one, 0 for one that is no weight."""
    name, _, value = parameters.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
