"""A model repository as Triton's documents and quality assurance write one: ONNX models, config.pbtxt, and nothing of ours."""

from __future__ import annotations

from pathlib import Path

from onnx import helper

from core_grpc.types import Datatype
from tests.support.models import onnx_model, write_onnx

SIMPLE = """
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {
    name: "INPUT0"
    data_type: TYPE_INT32
    dims: [ 16 ]
  },
  {
    name: "INPUT1"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_INT32
    dims: [ 16 ]
    label_filename: "output0_labels.txt"
  },
  {
    name: "OUTPUT1"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
instance_group [
  {
    kind: KIND_CPU
    count: 2
  }
]
version_policy: { latest { num_versions: 2 } }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 20000
}
optimization { execution_accelerators { cpu_execution_accelerator : [ { name : "openvino" } ] } }
"""

ENSEMBLE = """
name: "ensemble_add_sub"
platform: "ensemble"
max_batch_size: 8
input [
  {
    name: "A"
    data_type: TYPE_INT32
    dims: [ 16 ]
  },
  {
    name: "B"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
output [
  {
    name: "TWICE_A"
    data_type: TYPE_INT32
    dims: [ 16 ]
  },
  {
    name: "TWICE_B"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
ensemble_scheduling {
  step [
    {
      model_name: "simple"
      model_version: -1
      input_map {
        key: "INPUT0"
        value: "A"
      }
      input_map {
        key: "INPUT1"
        value: "B"
      }
      output_map {
        key: "OUTPUT0"
        value: "sum"
      }
      output_map {
        key: "OUTPUT1"
        value: "difference"
      }
    },
    {
      model_name: "simple"
      model_version: 2
      input_map {
        key: "INPUT0"
        value: "sum"
      }
      input_map {
        key: "INPUT1"
        value: "difference"
      }
      output_map {
        key: "OUTPUT0"
        value: "TWICE_A"
      }
      output_map {
        key: "OUTPUT1"
        value: "TWICE_B"
      }
    }
  ]
}
"""

SEQUENCE = """
name: "simple_sequence"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {
    name: "INPUT"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }
]
output [
  {
    name: "OUTPUT"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }
]
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest {
    max_candidate_sequences: 4
  }
  control_input [
    {
      name: "START"
      control [
        {
          kind: CONTROL_SEQUENCE_START
          int32_false_true: [ 0, 1 ]
        }
      ]
    },
    {
      name: "READY"
      control [
        {
          kind: CONTROL_SEQUENCE_READY
          int32_false_true: [ 0, 1 ]
        }
      ]
    }
  ]
  state [
    {
      input_name: "INPUT_STATE"
      output_name: "OUTPUT_STATE"
      data_type: TYPE_INT32
      dims: [ 1 ]
      initial_state: {
        name: "what a sequence begins with"
        data_type: TYPE_INT32
        dims: [ 1 ]
        data_file: "hundred"
      }
    }
  ]
}
instance_group [ { kind: KIND_CPU } ]
"""


def write_simple(repository: Path) -> None:
    """``simple``: INPUT0, INPUT1 INT32 [16] -> OUTPUT0 sum, OUTPUT1 difference; versions 1 to 3, and a file name of its own."""
    shape = (Datatype.INT32, ("batch", 16))
    nodes = [helper.make_node(op, ["INPUT0", "INPUT1"], [out]) for op, out in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))]
    model = onnx_model(nodes, {"INPUT0": shape, "INPUT1": shape}, {"OUTPUT0": shape, "OUTPUT1": shape})
    for version in ("1", "2", "3"):
        directory = write_onnx(repository, "simple", model, version=version)
        (directory / "model.onnx").rename(directory / "add_sub.onnx")
    text = SIMPLE + 'default_model_filename: "add_sub.onnx"\n'
    (repository / "simple" / "config.pbtxt").write_text(text, encoding="utf-8")
    labels = "\n".join(f"label {number}" for number in range(16))
    (repository / "simple" / "output0_labels.txt").write_text(labels, encoding="utf-8")


def write_ensemble(repository: Path) -> None:
    """``ensemble_add_sub``: A, B -> (A + B) + (A - B), (A + B) - (A - B), by ``simple`` twice. Its version's directory is empty."""
    (repository / "ensemble_add_sub" / "1").mkdir(parents=True)
    (repository / "ensemble_add_sub" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")


def write_sequence(repository: Path) -> None:
    """``simple_sequence``: OUTPUT INT32 [1] is the sum of the sequence's INPUTs so far, and 100. The sum is an implicit state."""
    shape = (Datatype.INT32, ("batch", 1))
    nodes = [
        helper.make_node("Mul", ["INPUT", "READY"], ["ready_input"]),
        helper.make_node("Add", ["INPUT_STATE", "ready_input"], ["OUTPUT_STATE"]),
        helper.make_node("Identity", ["OUTPUT_STATE"], ["OUTPUT"]),
    ]
    inputs = dict.fromkeys(("INPUT", "START", "READY", "INPUT_STATE"), shape)
    write_onnx(repository, "simple_sequence", onnx_model(nodes, inputs, {"OUTPUT": shape, "OUTPUT_STATE": shape}))
    (repository / "simple_sequence" / "config.pbtxt").write_text(SEQUENCE, encoding="utf-8")
    (repository / "simple_sequence" / "initial_state").mkdir()
    (repository / "simple_sequence" / "initial_state" / "hundred").write_bytes((100).to_bytes(4, "little"))
