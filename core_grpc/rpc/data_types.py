"""Datatypes as Triton's ``inference.DataType``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from core_grpc.types import Datatype
from protos.inference import model_config_pb2 as pb

DATA_TYPES: Mapping[Datatype, pb.DataType] = {
    datatype: cast("pb.DataType", pb.DataType.Value(f"TYPE_{'STRING' if datatype is Datatype.BYTES else datatype.value}"))
    for datatype in Datatype
}
"""BYTES is TYPE_STRING there."""
