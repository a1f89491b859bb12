"""The body of ``POST /predict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rest_facade.errors import FacadeError, invalid_argument

Dimension = Annotated[int, Field(ge=0, le=2**31 - 1)]


class PredictBody(BaseModel):
    """One inference with a model that has one input."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Any
    """A number or nested lists of numbers (of booleans for a BOOL input), row-major. Checked against the model by convert.py."""
    shape: Annotated[list[Dimension], Field(max_length=32)] | None = None
    """The shape of ``input`` when that is one flat list. Left out, it is the shape of the nesting."""
    model: str = ""
    """The model's name. Empty for the core's default model."""
    version: str = ""
    """Digits; empty for the newest that is ready."""
    output: str = ""
    """The output wanted. Empty for the model's first."""


def predict_body_from_json(body: bytes) -> PredictBody:
    """Reads a body: JSON, in which ``NaN``, ``Infinity`` and ``-Infinity`` may stand as numbers.

    Raises:
        FacadeError: INVALID_ARGUMENT; names the field and what was wanted. What came is described, never quoted.
    """
    try:
        return PredictBody.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False, include_context=False)[0]) from error


def _refusal(problem: Mapping[str, Any]) -> FacadeError:
    place = problem["loc"]
    if problem["type"] == "extra_forbidden":
        name = str(place[0])[:100].encode("unicode_escape").decode("ascii")
        return invalid_argument(f"'{name}': no such field; wanted {', '.join(PredictBody.model_fields)}")
    field = str(place[0]) if place else "body"
    position = "".join(f"[{index}]" for index in place[1:])
    return invalid_argument(f"{field}{position}: {problem['msg'][:1].lower()}{problem['msg'][1:]}")
