"""What a load request says, from Triton's parameters: ``config`` (JSON of a partial ModelConfig) and ``file:<version>/<file>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf import json_format

from core_grpc.errors import InvalidArgument, ModelLoadFailed, one_line, quoted
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.overrides import LoadOverride, TensorOverride
from core_grpc.models.version_policy import ALL, MAX_LATEST, VersionPolicy, specific
from core_grpc.rpc.data_types import DATA_TYPES
from core_grpc.rpc.instance_group_codec import decode_instance_groups
from protos.inference import model_config_pb2 as pb

_FILE = "file:"
_DATATYPES = {number: datatype for datatype, number in DATA_TYPES.items()}
_REFUSED = ("sequence_batching", "ensemble_scheduling", "model_warmup", "batch_input", "batch_output", "model_repository_agents")
"""Fields that would change what the model answers and that cannot be overridden here. Others (optimization, …) change nothing."""

_BACKENDS = {"onnxruntime_onnx": "onnxruntime", "onnxruntime": "onnxruntime", "python": "python", "identity": "identity", "": ""}
"""By Triton's words for platform and backend."""


def decode_override(model: str, parameters: Mapping[str, str | bytes | bool | int]) -> LoadOverride | None:
    """The override, or None where there is none.

    Raises:
        InvalidArgument: an unknown parameter, or one of the wrong kind.
        ModelLoadFailed: the configuration cannot be read, or says what cannot be overridden.
    """
    files: dict[str, bytes] = {}
    config: str | None = None
    for key, value in parameters.items():
        if key.startswith(_FILE):
            if not isinstance(value, bytes):
                raise InvalidArgument(f"parameter {quoted(key)}: wanted bytes")
            files[key.removeprefix(_FILE)] = value
        elif key == "config":
            if not isinstance(value, str):
                raise InvalidArgument("parameter 'config': wanted a string with JSON")
            config = value
        else:
            raise InvalidArgument(
                f"failed to load {quoted(model)}, unknown parameter {quoted(key)}: wanted config or file:<version>/<name>"
            )
    if files and config is None:
        raise InvalidArgument(f"failed to load {quoted(model)}, override files need the parameter config as well")
    return None if config is None else _override(model, _message(model, config), files)


def _message(model: str, text: str) -> pb.ModelConfig:
    try:
        message = json_format.Parse(text, pb.ModelConfig(), max_recursion_depth=20)
    except json_format.ParseError as error:
        reason = one_line(str(error).partition("\n")[0], 300)
        raise _failure(model, f"config: not the JSON of a ModelConfig: {reason}") from None
    for name in _REFUSED:
        value = getattr(message, name)
        if message.HasField(name) if not isinstance(value, Sequence) else len(value):
            raise _failure(model, f"config: {name} cannot be overridden")
    if message.name not in ("", model):
        raise _failure(model, f"config: name: wanted the model's, got {quoted(message.name)}")
    return message


def _override(model: str, message: pb.ModelConfig, files: Mapping[str, bytes]) -> LoadOverride:
    backend = message.backend or message.platform
    if backend not in _BACKENDS:
        raise _failure(model, f"config: backend {quoted(backend)}: wanted {', '.join(filter(None, _BACKENDS))}")
    if message.max_batch_size < 0:
        raise _failure(model, f"config: max_batch_size: wanted 0 or more, got {message.max_batch_size}")
    delay_us = message.dynamic_batching.max_queue_delay_microseconds
    return LoadOverride(
        # Not said and 0 are the same in protobuf. A request that declares the inputs has said it.
        max_batch_size=message.max_batch_size if message.max_batch_size or message.input else None,
        backend=_BACKENDS[backend],
        instances=_instances(model, message),
        max_queue_delay_s=delay_us / 1e6 if message.HasField("dynamic_batching") else None,
        versions=_versions(model, message.version_policy) if message.HasField("version_policy") else None,
        inputs={item.name: _tensor(model, item) for item in message.input},
        outputs={item.name: _tensor(model, item) for item in message.output},
        files=files,
    )


def _failure(model: str, text: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"failed to load {quoted(model)}, {text}")


def _instances(model: str, message: pb.ModelConfig) -> tuple[InstanceGroup, ...] | None:
    try:
        return decode_instance_groups(message.instance_group)
    except ModelLoadFailed as error:
        raise _failure(model, f"config: {error.message}") from None


def _versions(model: str, policy: pb.ModelVersionPolicy) -> VersionPolicy:
    if policy.HasField("all"):
        return ALL
    if policy.HasField("specific"):
        if not policy.specific.versions or min(policy.specific.versions) < 0:
            raise _failure(model, "config: version_policy.specific.versions: wanted one version or more, none of them negative")
        return specific([str(version) for version in policy.specific.versions])
    if policy.HasField("latest") and not 1 <= policy.latest.num_versions <= MAX_LATEST:
        wanted = f"wanted 1 to {MAX_LATEST}, got {policy.latest.num_versions}"
        raise _failure(model, f"config: version_policy.latest.num_versions: {wanted}")
    return VersionPolicy(latest=policy.latest.num_versions or 1)


def _tensor(model: str, item: pb.ModelInput | pb.ModelOutput) -> TensorOverride:
    if item.data_type not in _DATATYPES:
        raise _failure(model, f"config: {quoted(item.name)} has no data_type")
    return TensorOverride(_DATATYPES[item.data_type], tuple(item.dims))
