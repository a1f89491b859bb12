"""config.pbtxt: what each of its fields becomes, that none is ignored in silence, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.model_config import InputConfig, OutputConfig
from core_grpc.models.repository import scan_repository
from core_grpc.models.triton_config import model_config_from_pbtxt
from core_grpc.models.triton_fields import FIELDS, Treatment, treatment
from core_grpc.models.version_policy import ALL, VersionPolicy, specific
from core_grpc.pipelines.step import Step
from core_grpc.scheduler.policy import QueuePolicy, TimeoutAction
from core_grpc.scheduler.resources import ResourceNeed
from core_grpc.types import Datatype
from protos.inference import model_config_pb2 as pb

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
ONNX = f'backend: "onnxruntime" max_batch_size: 8 {TENSORS}'
PYTHON = f'backend: "python" max_batch_size: 8 {TENSORS}'
LIMITED = ' instance_group {{ rate_limiter {{ resources {{ name: "R" count: 1 {} }} }} }}'
STEP = """
    platform: "ensemble"
    ensemble_scheduling {{ step {{ model_name: "a" {} input_map {{ key: "IN" value: "X" }} output_map {{ key: "OUT" value: "Y" }} }} }}
"""
WARM = ' model_warmup {{ name: "w" batch_size: 2 inputs {{ key: "X" value {{ {} }} }} }}'
DIRECT = "sequence_batching {{ direct {{ {} }} }}"
OLDEST = "sequence_batching {{ oldest {{ {} }} }}"
STATE = 'sequence_batching {{ state {{ input_name: "in" output_name: "out" {} }} }}'
BATCHING = "dynamic_batching {{ {} }}"
LEVELS = "dynamic_batching {{ priority_levels: 2 default_priority_level: 1 {} }}"
MADE = 'batch_input {{ target_name: "I" source_input: "X" {} }}'
SCATTERED = 'batch_output {{ target_name: "Y" source_input: "X" {} }}'
CONTROL = 'sequence_batching {{ control_input {{ name: "C" control {{ {} }} }} }}'

READ: dict[str, tuple[str, str]] = {
    # A path that is read: two files that differ in that field alone, or so that it shows, and are configured differently.
    "name": (ONNX, ONNX + ' name: "other"'),
    "platform": (TENSORS, TENSORS + ' platform: "onnxruntime_onnx"'),
    "backend": (TENSORS, TENSORS + ' backend: "python"'),
    "version_policy.latest.num_versions": (ONNX, ONNX + " version_policy { latest { num_versions: 3 } }"),
    "version_policy.all": (ONNX, ONNX + " version_policy { all { } }"),
    "version_policy.specific.versions": (ONNX, ONNX + " version_policy { specific { versions: [1, 3] } }"),
    "max_batch_size": (TENSORS, TENSORS + " max_batch_size: 4"),
    "input.name": ("", 'input { name: "Z" data_type: TYPE_FP32 dims: 4 }'),
    "input.data_type": (ONNX, ONNX.replace('input { name: "X" data_type: TYPE_FP32', 'input { name: "X" data_type: TYPE_STRING')),
    "input.format": (ONNX, ONNX.replace("dims: 4 } output", "dims: 4 format: FORMAT_NCHW } output")),
    "input.dims": (ONNX, ONNX.replace("dims: 4 } output", "dims: [ 4, -1 ] } output")),
    "input.allow_ragged_batch": (ONNX, ONNX.replace("dims: 4 } output", "dims: 4 allow_ragged_batch: true } output")),
    "batch_input.kind": (ONNX + MADE.format("kind: BATCH_ELEMENT_COUNT"), ONNX + MADE.format("kind: BATCH_ITEM_SHAPE")),
    "batch_input.target_name": (ONNX + MADE.format(""), ONNX + MADE.format('target_name: "J"')),
    "batch_input.source_input": (ONNX + MADE.format(""), ONNX + MADE.format("").replace('"X"', '"W"')),
    "batch_output.kind": (ONNX, ONNX + SCATTERED.format("kind: BATCH_SCATTER_WITH_INPUT_SHAPE")),
    "batch_output.target_name": (ONNX + SCATTERED.format(""), ONNX + SCATTERED.format('target_name: "Z"')),
    "batch_output.source_input": (ONNX + SCATTERED.format(""), ONNX + SCATTERED.format("").replace('"X"', '"W"')),
    "input.optional": (ONNX, ONNX.replace("dims: 4 } output", "dims: 4 optional: true } output")),
    "input.reshape.shape": (ONNX, ONNX.replace("dims: 4 } output", "dims: 4 reshape { shape: [ 2, 2 ] } } output")),
    "output.reshape.shape": (ONNX, ONNX.replace('output { name: "Y"', 'output { reshape { shape: [ 2, 2 ] } name: "Y"')),
    "output.name": ("", 'output { name: "Z" data_type: TYPE_FP32 dims: 4 }'),
    "output.data_type": (ONNX, ONNX.replace('output { name: "Y" data_type: TYPE_FP32', 'output { name: "Y" data_type: TYPE_INT8')),
    "output.dims": (ONNX, ONNX + ' output { name: "Z" data_type: TYPE_FP32 dims: [ 2, 2 ] }'),
    "output.label_filename": (ONNX, ONNX.replace('output { name: "Y"', 'output { label_filename: "labels.txt" name: "Y"')),
    "instance_group.count": (ONNX, ONNX + " instance_group { count: 2 }"),
    "instance_group.gpus": (ONNX, ONNX + " instance_group { gpus: 0 }"),
    "instance_group.kind": (ONNX, ONNX + " instance_group { kind: KIND_GPU }"),
    "instance_group.name": (ONNX, ONNX + ' instance_group { name: "g" }'),
    "instance_group.rate_limiter.resources.name": (ONNX + LIMITED.format(""), ONNX + LIMITED.format("").replace("R", "S")),
    "instance_group.rate_limiter.resources.global": (ONNX + LIMITED.format(""), ONNX + LIMITED.format("global: true")),
    "instance_group.rate_limiter.resources.count": (ONNX + LIMITED.format(""), ONNX + LIMITED.format("").replace("1", "2")),
    "instance_group.rate_limiter.priority": (ONNX, ONNX + " instance_group { rate_limiter { priority: 2 } }"),
    "response_cache.enable": (ONNX, ONNX + " response_cache { enable: true }"),
    "default_model_filename": (ONNX, ONNX + ' default_model_filename: "net.onnx"'),
    "dynamic_batching.preferred_batch_size": (ONNX, ONNX + BATCHING.format("preferred_batch_size: [4, 8]")),
    "dynamic_batching.max_queue_delay_microseconds": (ONNX, ONNX + BATCHING.format("max_queue_delay_microseconds: 100")),
    "dynamic_batching.preserve_ordering": (ONNX, ONNX + BATCHING.format("preserve_ordering: true")),
    "dynamic_batching.priority_levels": (ONNX, ONNX + LEVELS.format("")),
    "dynamic_batching.default_priority_level": (ONNX + LEVELS.format(""), ONNX + LEVELS.replace("level: 1", "level: 2").format("")),
    "sequence_batching.max_sequence_idle_microseconds": (ONNX, ONNX + "sequence_batching { max_sequence_idle_microseconds: 5000000 }"),
    "sequence_batching.control_input.name": (ONNX, ONNX + CONTROL.format("kind: CONTROL_SEQUENCE_START")),
    "sequence_batching.control_input.control.kind": (
        ONNX + CONTROL.format("kind: CONTROL_SEQUENCE_START"),
        ONNX + CONTROL.format("kind: CONTROL_SEQUENCE_END"),
    ),
    "ensemble_scheduling.step.model_name": (STEP.format(""), STEP.format("").replace('"a"', '"b"')),
    "ensemble_scheduling.step.model_version": (STEP.format("model_version: -1"), STEP.format("model_version: 2")),
    "ensemble_scheduling.step.input_map": (STEP.format(""), STEP.format("").replace('"IN"', '"OTHER"')),
    "ensemble_scheduling.step.output_map": (STEP.format(""), STEP.format("").replace('"OUT"', '"OTHER"')),
    "model_warmup.name": (ONNX + WARM.format(""), ONNX + WARM.format("").replace('"w"', '"v"')),
    "model_warmup.batch_size": (ONNX + WARM.format(""), ONNX + WARM.format("").replace("2", "3")),
    "model_warmup.count": (ONNX + WARM.format(""), ONNX + WARM.format("").replace("batch_size", "count: 4 batch_size")),
    "model_warmup.inputs.data_type": (ONNX + WARM.format(""), ONNX + WARM.format("data_type: TYPE_FP32")),
    "model_warmup.inputs.dims": (ONNX + WARM.format(""), ONNX + WARM.format("dims: 4")),
    "model_warmup.inputs.random_data": (ONNX + WARM.format(""), ONNX + WARM.format("random_data: true")),
    "model_warmup.inputs.input_data_file": (ONNX + WARM.format(""), ONNX + WARM.format('input_data_file: "x"')),
    "sequence_batching.direct.max_queue_delay_microseconds": (
        ONNX + DIRECT.format(""),
        ONNX + DIRECT.format("max_queue_delay_microseconds: 9"),
    ),
    "sequence_batching.direct.minimum_slot_utilization": (ONNX + DIRECT.format(""), ONNX + DIRECT.format("minimum_slot_utilization: 0.5")),
    "sequence_batching.oldest.max_candidate_sequences": (ONNX + OLDEST.format(""), ONNX + OLDEST.format("max_candidate_sequences: 4")),
    "sequence_batching.oldest.preferred_batch_size": (ONNX + OLDEST.format(""), ONNX + OLDEST.format("preferred_batch_size: 4")),
    "sequence_batching.oldest.max_queue_delay_microseconds": (
        ONNX + OLDEST.format(""),
        ONNX + OLDEST.format("max_queue_delay_microseconds: 9"),
    ),
    "sequence_batching.state.input_name": (ONNX + STATE.format(""), ONNX + STATE.format("").replace('"in"', '"other"')),
    "sequence_batching.state.output_name": (ONNX + STATE.format(""), ONNX + STATE.format("").replace('"out"', '"other"')),
    "sequence_batching.state.initial_state.data_file": (ONNX + STATE.format(""), ONNX + STATE.format('initial_state { data_file: "x" }')),
    "parameters": (ONNX, ONNX + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'),
    "parameters.string_value": (ONNX, ONNX + 'parameters { key: "other" value { string_value: "1" } }'),
    "model_transaction_policy.decoupled": (PYTHON, PYTHON + "model_transaction_policy { decoupled: true }"),
}
for kind in ("int32", "fp32", "bool"):
    READ[f"sequence_batching.control_input.control.{kind}_false_true"] = (
        ONNX + CONTROL.format(f"{kind}_false_true: [ 0, 1 ]"),
        ONNX + CONTROL.format(f"{kind}_false_true: [ 1, 0 ]"),
    )
for where, levels in (("default_queue_policy", "default_queue_policy {{ {} }}"), ("priority_queue_policy", None)):
    values = {
        "timeout_action": "timeout_action: DELAY",
        "default_timeout_microseconds": "default_timeout_microseconds: 5000",
        "allow_timeout_override": "allow_timeout_override: true",
        "max_queue_size": "max_queue_size: 7",
    }
    form = levels or "priority_queue_policy {{ key: 2 value {{ {} }} }}"
    for field, value in values.items():
        READ[f"dynamic_batching.{where}.{field}"] = (ONNX + LEVELS.format(form.format("")), ONNX + LEVELS.format(form.format(value)))


FROM_MODEL = {
    "sequence_batching.control_input.control.data_type",
    "sequence_batching.oldest.preserve_ordering",
    "sequence_batching.state.data_type",
    "sequence_batching.state.dims",
    "sequence_batching.state.initial_state.data_type",
    "sequence_batching.state.initial_state.dims",
    "sequence_batching.state.initial_state.zero_data",
    "sequence_batching.state.initial_state.name",
    "batch_input.data_type",
    "model_warmup.inputs.zero_data",
}
"""Neither read nor said to be without effect: without them it would be the same."""


def configured(text: str) -> object:
    """The configuration, or the reason why there is none."""
    try:
        return model_config_from_pbtxt("m", text)
    except ModelLoadFailed as error:
        return error.message


def leaves(descriptor: Descriptor, above: str = "") -> Iterator[tuple[str, list[FieldDescriptor]]]:
    """Every field that holds no message, or an empty one, by its path; with the fields on the way to it."""
    for field in descriptor.fields:
        path = f"{above}{field.name}"
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        below = [(name, [field, *way]) for name, way in leaves(inner, path + ".")] if inner is not None else []
        yield from below or [(path, [field])]


LEAVES = dict(leaves(cast("Descriptor", pb.ModelConfig.DESCRIPTOR)))


def text_with(way: list[FieldDescriptor]) -> str:
    """A file that sets the last field of the way, and nothing else."""
    field, *rest = way
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        key = 'key: "1"' if inner.fields_by_name["key"].cpp_type == FieldDescriptor.CPPTYPE_STRING else "key: 1"
        return f"{field.name} {{ {key} {text_with([value, *rest])} }}"
    if inner is not None:
        return f"{field.name} {{ {text_with(rest) if rest else ''} }}"
    text = {FieldDescriptor.CPPTYPE_STRING: '"x"', FieldDescriptor.CPPTYPE_BOOL: "true"}.get(field.cpp_type, "1")
    return f"{field.name}: {text}"


@pytest.mark.parametrize("path", LEAVES)
def test_no_field_is_ignored_in_silence(path: str) -> None:
    kind = treatment(path)
    alone = text_with(LEAVES[path])
    text_format.Parse(alone, pb.ModelConfig())
    if kind is Treatment.READ:
        without, having = READ[path]
        assert configured(without) != configured(having)
    elif kind is Treatment.NO_EFFECT:
        # A state has its names.
        text = STATE.format(text_with(LEAVES[path][-1:])) if path.startswith("sequence_batching.state.") else alone
        config = model_config_from_pbtxt("m", text)
        assert config.without_effect == (path,)
        assert path in config.notice
    elif kind is Treatment.REFUSED:
        with pytest.raises(ModelLoadFailed, match=f"config.pbtxt: {path} is not served here"):
            model_config_from_pbtxt("m", alone)
    else:
        assert path in FROM_MODEL


def test_every_row_and_every_example_is_of_a_field() -> None:
    assert all(any(path == row or path.startswith(row + ".") for path in LEAVES) for row in FIELDS)
    assert {path for path in LEAVES if treatment(path) is Treatment.READ} == READ.keys() - {"parameters"}


def test_a_whole_file() -> None:
    config = model_config_from_pbtxt(
        "simple",
        """
        # As Triton's documents write it.
        name: "simple"
        platform: "onnxruntime_onnx"
        max_batch_size: 8
        input [
          { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
          { name: "TEXT" data_type: TYPE_STRING dims: [ -1, 2 ] format: FORMAT_NHWC }
        ]
        output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] label_filename: "labels.txt" } ]
        instance_group [
          { count: 2 kind: KIND_CPU },
          { kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 4 } ] priority: 2 } }
        ]
        version_policy: { latest { num_versions: 2 } }
        dynamic_batching {
          preferred_batch_size: [ 8, 4 ]
          max_queue_delay_microseconds: 1500
          preserve_ordering: true
          priority_levels: 3
          default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 2000 allow_timeout_override: true max_queue_size: 9 }
          priority_queue_policy { key: 3 value { max_queue_size: 1 } }
        }
        optimization { graph { level: 1 } execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }
        parameters { key: "intra_op_thread_count" value: { string_value: "3" } }
        parameters { key: "unheard_of" value: { string_value: "x" } }
        metric_tags { key: "team" value: "vision" }
        """,
    )
    assert (config.backend, config.max_batch_size, config.file) == ("onnxruntime", 8, "config.pbtxt")
    assert config.inputs == {
        "INPUT0": InputConfig(Datatype.INT32, (-1, 16)),
        "TEXT": InputConfig(Datatype.BYTES, (-1, -1, 2), layout="NHWC"),
    }
    assert config.outputs == {"OUTPUT0": OutputConfig(datatype=Datatype.INT32, shape=(-1, 16), labels="labels.txt")}
    assert config.versions == VersionPolicy(latest=2)
    assert config.instances == (
        InstanceGroup(count=2, kind="cpu"),
        InstanceGroup(kind="cpu", resources=(ResourceNeed("R", 4),), priority=2),
    )
    batching, policies = config.batching, config.queue.policies
    assert (batching.preferred_batch_sizes, batching.max_queue_delay_s, batching.preserve_ordering) == ((4, 8), 0.0015, True)
    assert (policies.priority_levels, policies.default_priority_level) == (3, 2)
    assert policies.default == QueuePolicy(9, 0.002, TimeoutAction.DELAY, allow_timeout_override=True)
    assert policies.by_level == {3: QueuePolicy(1, 0.0, TimeoutAction.REJECT, allow_timeout_override=False)}
    assert config.backend_options == {"onnxruntime": {"intra_op_threads": 3}}
    assert config.without_effect == (
        "metric_tags",
        "optimization.graph.level",
        "optimization.execution_accelerators.cpu_execution_accelerator.name",
        "parameters unheard_of",
    )
    assert config.notice.startswith("config.pbtxt: no effect here: metric_tags, optimization.graph.level")


def test_an_ensemble() -> None:
    config = model_config_from_pbtxt("m", STEP.format("model_version: 3") + TENSORS + " max_batch_size: 4")
    assert config.backend == "pipeline"
    assert config.steps == (Step("a", "3", {"IN": "X"}, {"OUT": "Y"}),)
    assert model_config_from_pbtxt("m", STEP.format("")).steps[0].version == ""


def test_versions_and_batch_sizes() -> None:
    assert model_config_from_pbtxt("m", "version_policy { all {} }").versions == ALL
    assert model_config_from_pbtxt("m", "version_policy { specific { versions: [2, 1] } }").versions == specific(["2", "1"])
    assert model_config_from_pbtxt("m", "").max_batch_size is None, "completed from the model, as Triton does"
    assert model_config_from_pbtxt("m", TENSORS).max_batch_size == 0
    assert model_config_from_pbtxt("m", TENSORS).inputs["X"].shape == (4,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope: 1", r'not the text of a ModelConfig, at line 1:1 : .*no field named "nope"'),
        ("max_batch_size: 'a", "not the text of a ModelConfig, at line 1"),
        ('name: "other"', "name: wanted 'm', as the model's directory, got 'other'"),
        ('platform: "tensorrt_plan"', "platform: wanted one of onnxruntime_onnx, python, ensemble, got 'tensorrt_plan'"),
        ('backend: "vllm"', "backend: wanted one of onnxruntime, python, identity, got 'vllm'"),
        ('backend: "python" platform: "onnxruntime_onnx"', "platform: wanted that of the backend 'python', got 'onnxruntime_onnx'"),
        ('platform: "ensemble"', "ensemble_scheduling goes with the platform 'ensemble'"),
        ('backend: "python" ensemble_scheduling { }', "ensemble_scheduling goes with the platform 'ensemble'"),
        ("ensemble_scheduling { step { } }", r"\[\[step\]\] 1 model: wanted the name of a model, got nothing"),
        ("max_batch_size: -1", "max_batch_size: wanted a whole number from 0"),
        ('input { name: "X" data_type: TYPE_FP32 }', "input 'X': wanted a name, data_type and dims"),
        ('input { name: "X" dims: 1 }', "input 'X': wanted a name, data_type and dims"),
        ('output { name: "X" data_type: TYPE_FP32 dims: -2 }', r"\[output.X\] shape: wanted a list of sizes"),
        ("version_policy { latest { } }", r"\[versions\] latest: wanted a whole number from 1 to 1000, got 0"),
        ("version_policy { specific { } }", "versions: wanted"),
        ('instance_group { rate_limiter { resources { name: "a b" count: 1 } } }', r"\[\[instances\]\] 0 resources name: wanted letters"),
        ("model_transaction_policy { decoupled: true }", "decoupled: wanted the backend python"),
        ('default_model_filename: "../x.onnx"', "model_file: wanted the name of a file"),
        (STATE.format("initial_state { } initial_state { }"), "sequence_batching.state 'in': wanted one initial_state, got 2"),
        (CONTROL.format("int32_false_true: [ 0, 2 ]"), r"control_input 'C': wanted 0 for false and 1 for true, got \[0, 2\]"),
        (
            ONNX + 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }',
            "intra_op_thread_count: wanted a whole number",
        ),
        (PYTHON + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "x" } }', "EXECUTION_ENV_PATH"),
        ('input { name: "X" reshape { shape: [] } name: "Y" }', "not the text of a ModelConfig"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed, match=message) as caught:
        model_config_from_pbtxt("m", text)
    assert caught.value.message.startswith("config.pbtxt")


def test_one_file_of_the_two(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "net.onnx").write_bytes(b"x")
    (tmp_path / "m" / "config.pbtxt").write_text('default_model_filename: "net.onnx"')
    (entry,) = scan_repository(tmp_path)
    assert (entry.reason, entry.backend, entry.config.model_file) == ("", "onnxruntime", "net.onnx")
    (tmp_path / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 7 } }")
    (entry,) = scan_repository(tmp_path)
    assert entry.reason == "config.pbtxt versions: wanted versions that exist (1), got 7"
    (tmp_path / "m" / "model.toml").touch()
    (entry,) = scan_repository(tmp_path)
    assert entry.reason == "model.toml and config.pbtxt are both there: wanted one of them"
