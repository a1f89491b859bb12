"""Triton's ``config.pbtxt``, read as it is: its message as text, said in the tables of model.toml, which then are read as always.

So a value out of range is refused by the name that docs/own-model.md gives it. ``triton_fields.py`` says what becomes of each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from core_grpc.errors import ModelLoadFailed, one_line, quoted
from core_grpc.models.model_config import TRITON_FILE, ModelConfig, model_config_from_document
from core_grpc.models.triton_fields import Treatment, treatment
from core_grpc.pipelines.step import PIPELINE, PLATFORM
from protos.inference import model_config_pb2 as pb

_BACKENDS: Mapping[str, str] = {"onnxruntime": "onnxruntime", "python": "python", "identity": "identity"}
_PLATFORMS: Mapping[str, str] = {"onnxruntime_onnx": "onnxruntime", "python": "python", PLATFORM: PIPELINE}
_KINDS: Mapping[int, str] = {0: "start", 1: "ready", 2: "end", 3: "correlation_id"}
"""Keys of [sequence] by ``ModelSequenceBatching.Control.Kind``."""


def model_config_from_pbtxt(name: str, text: str) -> ModelConfig:
    """Reads the content of the config.pbtxt of the model ``name``.

    Raises:
        ModelLoadFailed: it is not a ModelConfig, is another model's, or says something that is not served here; the field is named.
    """
    try:
        message = text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise _failure(f"not the text of a ModelConfig, at line {one_line(str(error).partition(chr(10))[0], 300)}") from None
    if message.name not in ("", name):
        raise _failure(f"name: wanted {quoted(name)}, as the model's directory, got {quoted(message.name)}")
    paths = list(dict.fromkeys(_set_fields(message, "")))
    for path in paths:
        if treatment(path) is Treatment.REFUSED:
            raise _failure(f"{path} is not served here, and without it the answers would be others")
    backend = _backend(message)
    document, unread = _backend_table(message, backend)
    document |= _model_tables(message, backend)
    config = model_config_from_document(TRITON_FILE, document)
    return replace(config, file=TRITON_FILE, without_effect=(*(p for p in paths if treatment(p) is Treatment.NO_EFFECT), *unread))


def _failure(text: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"{TRITON_FILE}: {text}")


def _set_fields(message: Message, above: str) -> Iterator[str]:
    """Paths of the fields that are set, down to those that hold no message or an empty one. Elements of a list or map have one path."""
    for field, value in message.ListFields():
        path = f"{above}{field.name}"
        if field.message_type is None:
            yield path
            continue
        if field.message_type.GetOptions().map_entry:
            is_plain = field.message_type.fields_by_name["value"].message_type is None
            parts = [] if is_plain else list(value.values())
        else:
            parts = list(value) if field.is_repeated else [value]
        below = [found for part in parts for found in _set_fields(part, path + ".")]
        yield from below or [path]


def _backend(message: pb.ModelConfig) -> str:
    """A name in ``BACKENDS``, or ``PIPELINE``; empty where the file says nothing, so that the model's file decides."""
    by_platform = _PLATFORMS.get(message.platform)
    by_backend = _BACKENDS.get(message.backend)
    if message.backend and by_backend is None:
        raise _failure(f"backend: wanted one of {', '.join(_BACKENDS)}, got {quoted(message.backend)}")
    if message.platform and by_platform is None:
        raise _failure(f"platform: wanted one of {', '.join(_PLATFORMS)}, got {quoted(message.platform)}")
    if by_platform and by_backend and by_platform != by_backend:
        raise _failure(f"platform: wanted that of the backend {quoted(message.backend)}, got {quoted(message.platform)}")
    is_ensemble = message.HasField("ensemble_scheduling")
    found = by_backend or by_platform or (PIPELINE if is_ensemble else "")
    if is_ensemble != (found == PIPELINE):
        raise _failure(f"ensemble_scheduling goes with the platform {quoted(PLATFORM)}, and it with nothing else")
    return found


def _model_tables(message: pb.ModelConfig, backend: str) -> dict[str, Any]:
    """What concerns every backend."""
    document: dict[str, Any] = {"backend": backend} if backend else {}
    # 0 and nothing are the same in this file. Triton completes what is missing only where no tensor is declared.
    if message.max_batch_size or message.input or message.output:
        document["max_batch_size"] = message.max_batch_size
    if message.default_model_filename:
        document["model_file"] = message.default_model_filename
    if message.HasField("version_policy"):
        document["versions"] = _versions(message.version_policy)
    if message.response_cache.enable:
        document["response_cache"] = {"enable": True}
    if message.instance_group:
        document["instances"] = [_instances(group) for group in message.instance_group]
    if message.model_warmup:
        document["warmup"] = {"sample": [_warmup(item) for item in message.model_warmup]}
    document |= _scheduling(message, backend)
    lead = [-1] if message.max_batch_size else []
    document["input"] = {item.name: _input(item, lead) for item in message.input}
    document["output"] = {item.name: _output(item, lead) for item in message.output}
    return document


def _scheduling(message: pb.ModelConfig, backend: str) -> dict[str, Any]:
    """How requests are joined and wait, and a pipeline's steps."""
    document: dict[str, Any] = {}
    if message.HasField("dynamic_batching"):
        document = _dynamic_batching(message.dynamic_batching)
    if message.HasField("sequence_batching"):
        document = _sequence_batching(message, backend)
    if message.HasField("ensemble_scheduling"):
        document = {"step": [_step(step) for step in message.ensemble_scheduling.step]}
    if message.batch_input or message.batch_output:
        document["batching"] = {**document.get("batching", {}), **_ragged_batching(message)}
    return document


def _versions(policy: pb.ModelVersionPolicy) -> Any:
    if policy.HasField("specific"):
        return list(policy.specific.versions)
    return {"latest": policy.latest.num_versions} if policy.HasField("latest") else "all" if policy.HasField("all") else "latest"


def _instances(group: pb.ModelInstanceGroup) -> dict[str, Any]:
    resources = [{"name": item.name, "count": item.count, "global": getattr(item, "global")} for item in group.rate_limiter.resources]
    return {
        "name": group.name,
        "count": group.count or 1,
        "kind": {pb.ModelInstanceGroup.KIND_GPU: "gpu", pb.ModelInstanceGroup.KIND_CPU: "cpu"}.get(group.kind, "auto"),
        "devices": list(group.gpus),
        "resources": resources,
        "priority": group.rate_limiter.priority or 1,
    }


def _dynamic_batching(batching: pb.ModelDynamicBatching) -> dict[str, Any]:
    queue: dict[str, Any] = {"priority_levels": batching.priority_levels}
    if batching.default_priority_level:
        queue["default_priority"] = batching.default_priority_level
    if batching.HasField("default_queue_policy"):
        queue |= _queue_policy(batching.default_queue_policy)
    # A level's policy stands for itself in Triton: what it does not say is nothing, and not what the default policy says.
    queue["priority"] = {str(level): _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()}
    return {
        "batching": {
            "preferred_batch_sizes": sorted(set(batching.preferred_batch_size)),
            "max_queue_delay_ms": batching.max_queue_delay_microseconds / 1000,
            "preserve_ordering": batching.preserve_ordering,
        },
        "queue": queue,
    }


def _ragged_batching(message: pb.ModelConfig) -> dict[str, Any]:
    return {
        "batch_input": [_batch_tensor(item, pb.BatchInput.Kind.Name(item.kind)) for item in message.batch_input],
        "batch_output": [_batch_tensor(item, pb.BatchOutput.Kind.Name(item.kind)) for item in message.batch_output],
    }


def _batch_tensor(item: pb.BatchInput | pb.BatchOutput, kind: str) -> dict[str, Any]:
    if len(item.source_input) != 1:
        raise _failure(f"{type(item).__name__}: wanted one source_input, got {len(item.source_input)}")
    return {"kind": kind.removeprefix("BATCH_").lower(), "target": list(item.target_name), "source": item.source_input[0]}


def _queue_policy(policy: pb.ModelQueuePolicy) -> dict[str, Any]:
    return {
        "timeout_action": "delay" if policy.timeout_action == pb.ModelQueuePolicy.DELAY else "reject",
        "timeout_ms": policy.default_timeout_microseconds / 1000,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_requests": policy.max_queue_size,
    }


def _sequence_batching(message: pb.ModelConfig, backend: str) -> dict[str, Any]:
    batching = message.sequence_batching
    table: dict[str, Any] = {"strategy": "direct"}
    chosen: pb.ModelSequenceBatching.StrategyDirect | pb.ModelSequenceBatching.StrategyOldest = batching.direct
    if batching.HasField("oldest"):
        table, chosen = {"strategy": "oldest"}, batching.oldest
        if batching.oldest.max_candidate_sequences:
            table["max_candidate_sequences"] = batching.oldest.max_candidate_sequences
    elif batching.direct.minimum_slot_utilization:
        table["minimum_slot_utilization"] = batching.direct.minimum_slot_utilization
    if idle_us := batching.max_sequence_idle_microseconds:
        table["max_idle_ms"] = idle_us / 1000
    lead = [-1] if message.max_batch_size else []
    table |= _controls(batching)
    table["state"] = [_state(item, lead, backend) for item in batching.state]
    joining: dict[str, Any] = {"max_queue_delay_ms": chosen.max_queue_delay_microseconds / 1000}
    if batching.oldest.preferred_batch_size:
        joining["preferred_batch_sizes"] = sorted(set(batching.oldest.preferred_batch_size))
    return {"sequence": table, "batching": joining}


def _controls(batching: pb.ModelSequenceBatching) -> dict[str, str]:
    table: dict[str, str] = {}
    for item in batching.control_input:
        for control in item.control:
            values = [*control.int32_false_true, *control.fp32_false_true, *control.bool_false_true]
            if values and [float(value) for value in values] != [0.0, 1.0]:
                raise _failure(f"sequence_batching.control_input {quoted(item.name)}: wanted 0 for false and 1 for true, got {values}")
            table[_KINDS[control.kind]] = item.name
    return table


def _state(item: pb.ModelSequenceBatching.State, lead: list[int], backend: str) -> dict[str, Any]:
    table: dict[str, Any] = {"input": item.input_name, "output": item.output_name}
    if backend == "python":
        table |= {"datatype": _datatype(item.data_type), "shape": [*lead, *item.dims]}
    if len(item.initial_state) > 1:
        raise _failure(f"sequence_batching.state {quoted(item.input_name)}: wanted one initial_state, got {len(item.initial_state)}")
    for initial in item.initial_state:
        if initial.HasField("data_file"):
            table["initial"] = f"initial_state/{initial.data_file}"
    return table


def _warmup(sample: pb.ModelWarmup) -> dict[str, Any]:
    inputs = {name: _warmup_input(item) for name, item in sample.inputs.items()}
    return {"name": sample.name, "batch_size": sample.batch_size or 1, "count": sample.count or 1, "input": inputs}


def _warmup_input(item: pb.ModelWarmup.Input) -> dict[str, Any]:
    table: dict[str, Any] = {"dims": list(item.dims)} if item.dims else {}
    if item.data_type:
        table["datatype"] = _datatype(item.data_type)
    if item.HasField("input_data_file"):
        return {**table, "file": f"warmup/{item.input_data_file}"}
    return {**table, "data": "random" if item.random_data else "zero"}


def _step(step: pb.ModelEnsembling.Step) -> dict[str, Any]:
    table: dict[str, Any] = {"model": step.model_name, "inputs": dict(step.input_map), "outputs": dict(step.output_map)}
    # -1 is the newest; 0 is what nothing is.
    return {**table, "version": step.model_version} if step.model_version not in (-1, 0) else table


def _input(item: pb.ModelInput, lead: list[int]) -> dict[str, Any]:
    table = _tensor("input", item, lead)
    if item.format:
        table["format"] = pb.ModelInput.Format.Name(item.format).removeprefix("FORMAT_")
    if item.optional:
        table["optional"] = True
    if item.allow_ragged_batch:
        table["ragged"] = True
    return table


def _output(item: pb.ModelOutput, lead: list[int]) -> dict[str, Any]:
    table = _tensor("output", item, lead)
    return {**table, "labels": item.label_filename} if item.label_filename else table


def _tensor(role: str, item: pb.ModelInput | pb.ModelOutput, lead: list[int]) -> dict[str, Any]:
    if not item.name or not item.dims or not item.data_type:
        raise _failure(f"{role} {quoted(item.name)}: wanted a name, data_type and dims")
    table: dict[str, Any] = {"datatype": _datatype(item.data_type), "shape": [*lead, *item.dims]}
    # An empty reshape is one to no dimensions.
    return {**table, "reshape": [*lead, *item.reshape.shape]} if item.HasField("reshape") else table


def _datatype(number: pb.DataType) -> str:
    name = pb.DataType.Name(number).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _backend_table(message: pb.ModelConfig, backend: str) -> tuple[dict[str, Any], list[str]]:
    """The table that is named after the backend, and the parameters that nobody reads."""
    parameters = {key: parameter.string_value for key, parameter in sorted(message.parameters.items())}
    is_decoupled = message.model_transaction_policy.decoupled
    if is_decoupled and backend != "python":
        raise _failure("model_transaction_policy.decoupled: wanted the backend python, which alone answers a request any number of times")
    table: dict[str, Any] = {}
    if backend == "python":
        if "EXECUTION_ENV_PATH" in parameters:
            raise _failure("parameters EXECUTION_ENV_PATH: a model in Python runs in the server's own environment here")
        table = {"decoupled": is_decoupled, "parameters": parameters}
        parameters = {}
    elif backend == "identity":
        table = {"outputs": {output.name: item.name for item, output in zip(message.input, message.output, strict=False)}}
        if "execute_delay_ms" in parameters:
            table["delay_ms"] = _number("execute_delay_ms", parameters.pop("execute_delay_ms"))
    elif backend == "onnxruntime" and "intra_op_thread_count" in parameters:
        table = {"intra_op_threads": _number("intra_op_thread_count", parameters.pop("intra_op_thread_count"))}
    return {backend: table} if table else {}, [f"parameters {key}" for key in parameters]


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _failure(f"parameters {key}: wanted a whole number, got {quoted(text)}")
    return int(text)
