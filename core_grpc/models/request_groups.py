"""Which requests to a model may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

from core_grpc.scheduler.padding import BatchForm
from core_grpc.scheduler.ragged import RaggedForm
from core_grpc.types import Array, InferRequest, ModelSpec

GroupOf: TypeAlias = Callable[[Mapping[str, Array], InferRequest | None], Hashable]


def group_of(spec: ModelSpec, form: BatchForm | RaggedForm, match_parameters: Sequence[str]) -> GroupOf:
    """What is equal for requests that may share a batch: the inputs they have, shapes beyond the batch dimension save for padded and ragged
    ones, and the parameters that must match.

    The request was held against the spec, so where the spec leaves nothing open all requests are alike.
    """
    names = [item.name for item in spec.inputs]
    padded = form.open_inputs
    is_open = any(item.optional or (-1 in item.shape[1:] and item.name not in padded) for item in spec.inputs)
    if not spec.max_batch_size or not (is_open or match_parameters):
        return lambda _inputs, _request: None

    def of_shapes(inputs: Mapping[str, Array], _request: InferRequest | None) -> Hashable:
        return tuple((name in padded or inputs[name].shape[1:]) if name in inputs else None for name in names)

    if not match_parameters:
        return of_shapes

    def of_shapes_and_parameters(inputs: Mapping[str, Array], request: InferRequest | None) -> Hashable:
        parameters = request.parameters if request else {}
        # With their types: 1, 1.0 and true are equal as keys.
        values = tuple((type(parameters[name]), parameters[name]) if name in parameters else None for name in match_parameters)
        return (of_shapes(inputs, request), values)

    return of_shapes_and_parameters
