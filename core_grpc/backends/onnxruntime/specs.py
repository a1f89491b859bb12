"""What a session takes and gives, in the protocol's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from core_grpc.errors import ModelLoadFailed
from core_grpc.types import Datatype, TensorSpec

_DATATYPES: Mapping[str, Datatype] = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(string)": Datatype.BYTES,
}


class Tensors(NamedTuple):
    """Inputs and outputs, in the model's order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def datatypes(self) -> frozenset[Datatype]:
        """All that occur."""
        return frozenset(spec.datatype for spec in (*self.inputs, *self.outputs))


def tensors_of(session: Any, declared_inputs: Sequence[TensorSpec]) -> Tensors:
    """Those of the session; of initializers that are graph inputs as well, those that are declared.

    Raises:
        ModelLoadFailed: one has a type that the protocol cannot carry.
    """
    defaults = {node.name: node for node in session.get_overridable_initializers()}
    optional = [defaults[spec.name] for spec in declared_inputs if spec.name in defaults]
    return Tensors(
        (*(_spec(node, "input") for node in session.get_inputs()), *(_spec(node, "input", is_optional=True) for node in optional)),
        tuple(_spec(node, "output") for node in session.get_outputs()),
    )


def _spec(node: Any, role: str, *, is_optional: bool = False) -> TensorSpec:
    datatype = _DATATYPES.get(node.type)
    if datatype is None:
        raise ModelLoadFailed(f"{role} '{node.name}' has the type {node.type}, which the protocol cannot carry")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    names = tuple(size if isinstance(size, str) else "" for size in node.shape)
    return TensorSpec(node.name, datatype, shape, names if any(names) else (), optional=is_optional)
