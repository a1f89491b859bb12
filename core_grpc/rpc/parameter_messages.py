"""Parameters as the protocol's messages have them: maps of messages, each with the oneof ``parameter_choice``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_grpc.errors import InvalidArgument, quoted


def parameter_values(parameters: Mapping[str, Any], what: str = "parameter", where: str = "") -> dict[str, Any]:
    """The values by name.

    Args:
        what: one of the parameters is called so in the error text.
        where: whose they are, for the error text; empty where nobody could doubt it.

    Raises:
        InvalidArgument: a parameter has no value.
    """
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidArgument(f"{what} {quoted(name)}{where and f' of {where}'} has no value")
        values[name] = getattr(parameter, choice)
    return values


def set_parameters(message: Any, values: Mapping[str, object], fields: Mapping[type, str]) -> None:
    """Writes values into a map of such messages; ``fields`` names the field of each type."""
    for name, value in values.items():
        setattr(message[name], fields[type(value)], value)
