from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class InferRequest(_message.Message):
    __slots__ = ("model_name", "input_tensor", "shape")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_TENSOR_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    input_tensor: bytes
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model_name: _Optional[str] = ..., input_tensor: _Optional[bytes] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("output_tensor", "inference_time_ms")
    OUTPUT_TENSOR_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    output_tensor: bytes
    inference_time_ms: float
    def __init__(self, output_tensor: _Optional[bytes] = ..., inference_time_ms: _Optional[float] = ...) -> None: ...
