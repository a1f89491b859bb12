"""The parameters that the protocol gives a meaning: which kinds of value they take. All others are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from core_grpc.errors import InvalidArgument, quoted
from core_grpc.types import ParameterValue

EMPTY_FINAL = "triton_enable_empty_final_response"
"""On a stream: an answer without outputs is wanted when a decoupled model has ended."""
RESERVED_PREFIX = "triton_"
"""Parameters that begin with it belong to the server."""


def _is_flag(value: ParameterValue) -> bool:
    return isinstance(value, bool)


def _is_count(value: ParameterValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_sequence_id(value: ParameterValue) -> bool:
    return isinstance(value, str) or _is_count(value)


_KINDS: Mapping[str, tuple[str, Callable[[ParameterValue], bool]]] = {
    "sequence_id": ("a non-negative integer or a string", _is_sequence_id),
    "sequence_start": ("true or false", _is_flag),
    "sequence_end": ("true or false", _is_flag),
    "priority": ("a non-negative integer", _is_count),
    "timeout": ("a non-negative integer (microseconds)", _is_count),
    "binary_data_output": ("true or false", _is_flag),
    EMPTY_FINAL: ("true or false", _is_flag),
}


def check_parameters(parameters: Mapping[str, ParameterValue]) -> None:
    """Holds a request's parameters against the protocol.

    Raises:
        InvalidArgument: a name is reserved for the server, or a value is of the wrong kind.
    """
    for key, value in parameters.items():
        if key in _KINDS:
            wanted, is_right = _KINDS[key]
            if not is_right(value):
                raise InvalidArgument(f"parameter {quoted(key)}: wanted {wanted}, got {_shown(value)}")
        elif key.startswith(RESERVED_PREFIX) or key == "headers":
            raise InvalidArgument(f"parameter {quoted(key)} is reserved: '{RESERVED_PREFIX}*' and 'headers' are the server's")


def _shown(value: ParameterValue) -> str:
    return "a string" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
