"""A model's spec and model.toml as Triton's ``inference.ModelConfig``.

``dims`` are without the batch dimension where the model has one, as Triton writes them
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md). What Tensorgate has and Triton's
message has no place for is left out.
"""

from __future__ import annotations

from core_grpc.data_plane import ConfiguredModel
from core_grpc.models.model_config import ModelConfig, OutputConfig
from core_grpc.pipelines.step import PIPELINE, Step
from core_grpc.rpc.batching_codec import encode_dynamic_batching
from core_grpc.rpc.data_types import DATA_TYPES
from core_grpc.rpc.instance_group_codec import encode_instance_group
from core_grpc.rpc.sequence_batching_codec import encode_sequence_batching
from core_grpc.types import ModelSpec, TensorSpec
from protos.inference import model_config_pb2 as pb

_WITHOUT_EFFECT = "tensorgate_fields_without_effect"
"""The parameter that names what the model's config.pbtxt says and changes nothing."""


def encode_model_config(model: ConfiguredModel) -> pb.ModelConfig:
    """The configuration as a message."""
    spec, config, backend = model.spec, model.config, model.backend
    is_pipeline = backend == PIPELINE
    message = pb.ModelConfig(
        name=spec.name,
        platform=spec.platform,
        backend="" if is_pipeline else backend,
        version_policy=_version_policy(config),
        max_batch_size=spec.max_batch_size,
        input=[_input(item, spec, config) for item in spec.inputs],
        output=[_output(item, spec, config) for item in spec.outputs],
        instance_group=() if is_pipeline else map(encode_instance_group, config.instances),
        default_model_filename=model.model_file,
        optimization=pb.ModelOptimizationPolicy(
            input_pinned_memory=pb.ModelOptimizationPolicy.PinnedMemoryBuffer(),
            output_pinned_memory=pb.ModelOptimizationPolicy.PinnedMemoryBuffer(),
        ),
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=spec.decoupled),
        response_cache=pb.ModelResponseCache(enable=True) if config.response_cache else None,
    )
    if is_pipeline:
        message.ensemble_scheduling.step.extend(map(_step, config.steps))
    elif config.sequence:
        message.sequence_batching.CopyFrom(encode_sequence_batching(config, config.sequence, model.engine_spec))
    elif spec.max_batch_size and not spec.decoupled:
        message.dynamic_batching.CopyFrom(encode_dynamic_batching(config, spec))
    for key, value in config.backend_options.get(backend, {}).items():
        if isinstance(value, str | int | float):
            message.parameters[key].string_value = str(value).lower() if isinstance(value, bool) else str(value)
    if config.without_effect:
        message.parameters[_WITHOUT_EFFECT].string_value = ", ".join(config.without_effect)
    return message


def _step(step: Step) -> pb.ModelEnsembling.Step:
    version = int(step.version) if step.version else -1
    return pb.ModelEnsembling.Step(model_name=step.model, model_version=version, input_map=step.inputs, output_map=step.outputs)


def _version_policy(config: ModelConfig) -> pb.ModelVersionPolicy:
    policy = config.versions
    if policy.latest is not None:
        return pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=policy.latest))
    if policy.specific:
        return pb.ModelVersionPolicy(specific=pb.ModelVersionPolicy.Specific(versions=map(int, policy.specific)))
    return pb.ModelVersionPolicy(all=pb.ModelVersionPolicy.All())


def _data_type(item: TensorSpec) -> pb.DataType:
    return DATA_TYPES[item.datatype]


def _dims(item: TensorSpec, spec: ModelSpec) -> tuple[int, ...]:
    return item.shape[1:] if spec.max_batch_size else item.shape


def _input(item: TensorSpec, spec: ModelSpec, config: ModelConfig) -> pb.ModelInput:
    layout = config.inputs[item.name].layout if item.name in config.inputs else ""
    return pb.ModelInput(
        name=item.name, data_type=_data_type(item), format=f"FORMAT_{layout or 'NONE'}", dims=_dims(item, spec), optional=item.optional
    )


def _output(item: TensorSpec, spec: ModelSpec, config: ModelConfig) -> pb.ModelOutput:
    labels = config.outputs.get(item.name, OutputConfig()).labels
    return pb.ModelOutput(name=item.name, data_type=_data_type(item), dims=_dims(item, spec), label_filename=labels)
