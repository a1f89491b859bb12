"""Whether a request fits the model it names: the checks that every door shares.

The form of a request (its bytes against its shape) is checked by the door's codec; here it is held against the ``ModelSpec``. Texts
keep the substrings that stock Triton clients and their tests look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.types import ModelSpec, RequestedOutput, Tensor, TensorSpec

_LISTED_NAMES = 8
"""Names listed in one error text."""


def check_inputs(spec: ModelSpec, inputs: Mapping[str, Tensor]) -> int:
    """Holds the inputs against the model and returns the rows of the request (1 where the model has no batch dimension).

    Raises:
        InvalidArgument: an input is missing or unknown, or the batch is empty or too large.
        InvalidTensor: datatype or shape differ from what the model declares.
    """
    rows = 0
    found = 0
    for wanted in spec.inputs:
        tensor = inputs.get(wanted.name)
        if tensor is None:
            if wanted.optional:
                continue
            raise _missing_input(spec, inputs)
        found += 1
        if tensor.datatype is not wanted.datatype:
            raise _wrong_datatype(spec, wanted, tensor)
        shape = tensor.array.shape
        if not _fits(wanted.shape, shape):
            raise _wrong_shape(spec, wanted, shape)
        if spec.max_batch_size:
            if found > 1 and shape[0] != rows:
                raise _uneven_batch(spec, wanted, shape[0], rows)
            rows = shape[0]
    if found != len(inputs):
        raise _unexpected_input(spec, inputs)
    return check_rows(spec, rows) if spec.max_batch_size and found else 1


def check_rows(spec: ModelSpec, rows: int) -> int:
    """The rows, if the model takes so many at once.

    Raises:
        InvalidArgument: none, or more than the model's max_batch_size.
    """
    if rows < 1:
        raise InvalidArgument(f"the batch for '{spec.name}' is empty: wanted 1 to {spec.max_batch_size} rows, got batch {rows}")
    if rows > spec.max_batch_size and not spec.splits_requests:
        raise InvalidArgument(
            f"inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}': got batch {rows}, max {spec.max_batch_size}"
        )
    return rows


def wanted_outputs(spec: ModelSpec, requested: Sequence[RequestedOutput]) -> Sequence[str]:
    """Names of the outputs that were asked for, in order.

    Raises:
        InvalidArgument: an output that the model does not have, or one named twice.
    """
    known = {output.name for output in spec.outputs}
    names = [output.name for output in requested]
    for position, name in enumerate(names):
        if name not in known:
            raise InvalidArgument(
                f"unexpected inference output {quoted(name)} for model '{spec.name}': "
                f"it has {_names(output.name for output in spec.outputs)}"
            )
        if name in names[:position]:
            raise InvalidArgument(f"output {quoted(name)} is requested twice")
    return names


def _fits(wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    # Not all(): its generator takes twice as long, for every request.
    for want, got in zip(wanted, shape, strict=True):  # noqa: SIM110
        if want not in (got, -1):
            return False
    return True


def _missing_input(spec: ModelSpec, inputs: Mapping[str, Tensor]) -> InvalidArgument:
    missing = _names(item.name for item in spec.inputs if not item.optional and item.name not in inputs)
    unexpected = [name for name in inputs if all(name != item.name for item in spec.inputs)]
    surplus = f"; unexpected inference input {_names(unexpected)}" if unexpected else ""
    return InvalidArgument(f"missing input {missing} for model '{spec.name}': got {_names(inputs) or 'no inputs'}{surplus}")


def _unexpected_input(spec: ModelSpec, inputs: Mapping[str, Tensor]) -> InvalidArgument:
    known = {item.name for item in spec.inputs}
    unexpected = _names(name for name in inputs if name not in known)
    return InvalidArgument(f"unexpected inference input {unexpected} for model '{spec.name}': it takes {_names(sorted(known))}")


def _wrong_datatype(spec: ModelSpec, wanted: TensorSpec, tensor: Tensor) -> InvalidTensor:
    return InvalidTensor(
        f"inference input '{wanted.name}' data-type is '{tensor.datatype}', but model '{spec.name}' expects '{wanted.datatype}'"
        + (" or BYTES with an encoded image" if wanted.accepts == "image" else "")
    )


def _wrong_shape(spec: ModelSpec, wanted: TensorSpec, shape: Sequence[int]) -> InvalidTensor:
    return InvalidTensor(
        f"unexpected shape for input '{wanted.name}' for model '{spec.name}'. Expected {_shape(wanted.shape)}, got {_shape(shape)}"
    )


def _uneven_batch(spec: ModelSpec, wanted: TensorSpec, got: int, rows: int) -> InvalidTensor:
    return InvalidTensor(f"input '{wanted.name}' for model '{spec.name}' has batch {got}, the inputs before it have batch {rows}")


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _names(names: Iterable[str]) -> str:
    listed = [quoted(name) for name in names]
    more = f" and {len(listed) - _LISTED_NAMES} more" if len(listed) > _LISTED_NAMES else ""
    return ", ".join(listed[:_LISTED_NAMES]) + more
