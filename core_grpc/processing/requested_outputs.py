"""The outputs that a request asks for: which they are, and in which form they are answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core_grpc.processing.classification import class_count, classified
from core_grpc.request_checks import wanted_outputs
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec, Tensor


def output_names(spec: ModelSpec, datatypes: Mapping[str, Datatype], request: InferRequest) -> Iterable[str]:
    """Names of the outputs to answer; what is asked of them is checked before anything runs.

    Args:
        datatypes: of all outputs of the model, in its order.

    Raises:
        InvalidArgument, InvalidTensor: no such output, or it cannot be answered as asked.
    """
    if not request.outputs:
        return datatypes
    names = wanted_outputs(spec, request.outputs)
    for output in request.outputs:
        class_count(output.name, output.parameters, spec)
    return names


def answered_outputs(
    spec: ModelSpec, datatypes: Mapping[str, Datatype], request: InferRequest, names: Iterable[str], made: Mapping[str, Array]
) -> dict[str, Tensor]:
    """Those of ``names`` that were made, as classes where the request asks for classes."""
    outputs = {name: Tensor(datatypes[name], made[name]) for name in names if name in made}
    for output in request.outputs:
        if output.name in outputs and (count := class_count(output.name, output.parameters, spec)):
            labels = next(item.labels for item in spec.outputs if item.name == output.name)
            outputs[output.name] = classified(outputs[output.name], labels, count, has_batch_dimension=spec.max_batch_size > 0)
    return outputs
