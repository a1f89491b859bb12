"""What the models of the steps say, held against each other and against what is declared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.pipelines.plan import make_plan
from core_grpc.pipelines.step import Step
from core_grpc.pipelines.tensors import PipelineTensors, pipeline_tensors
from core_grpc.types import Datatype, ModelSpec, TensorSpec

FP32, UINT8 = Datatype.FP32, Datatype.UINT8


def tensor(name: str, datatype: Datatype, *shape: int, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, shape, optional=optional)


def model(name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], max_batch_size: int = 8) -> ModelSpec:
    return ModelSpec(name, "1", "test", max_batch_size, inputs, outputs)


FIRST = model("first", (tensor("X", UINT8, -1, 4),), (tensor("Y", FP32, -1, 3), tensor("Z", FP32, -1)))
SECOND = model("second", (tensor("X", FP32, -1, -1), tensor("MASK", UINT8, -1, 4, optional=True)), (tensor("Y", FP32, -1, 2),))
IMAGES = replace(FIRST, inputs=(replace(FIRST.inputs[0], datatype=FP32, accepts="image"),))
STEPS = (Step("first", "", {"X": "A"}, {"Y": "B"}), Step("second", "", {"X": "B", "MASK": "M"}, {"Y": "C"}))
A, C = tensor("A", UINT8, -1, 4), tensor("C", FP32, -1, 2)


def joined(
    first: ModelSpec = FIRST, second: ModelSpec = SECOND, declared: tuple[TensorSpec, ...] = (), max_batch_size: int = 8
) -> PipelineTensors:
    plan = make_plan(STEPS, ["A", "M"], ["C", "B"])
    return pipeline_tensors(plan, [first, second], declared, ["A", "M"], max_batch_size)


def test_what_is_not_declared_comes_from_the_steps() -> None:
    tensors = joined()
    assert tensors.inputs == (A, tensor("M", UINT8, -1, 4, optional=True))
    assert tensors.outputs == (C, tensor("B", FP32, -1, 3))


def test_what_is_declared_stays() -> None:
    tensors = joined(declared=(tensor("C", FP32, -1, -1), A))
    assert tensors.outputs[0].shape == (-1, -1)


@pytest.mark.parametrize(
    ("first", "second", "declared", "reason"),
    [
        (
            FIRST,
            replace(SECOND, inputs=(tensor("X", UINT8, -1, -1), SECOND.inputs[1])),
            (),
            "step 2 (model 'second') inputs.X: wanted UINT8 [-1, -1], as the model has it, got tensor 'B' from step 1",
        ),
        (FIRST, replace(SECOND, inputs=(tensor("X", FP32, -1, 5), SECOND.inputs[1])), (), "wanted FP32 [-1, 5], as the model has it"),
        (FIRST, replace(SECOND, inputs=(tensor("X", FP32, -1, 3, 1), SECOND.inputs[1])), (), "wanted FP32 [-1, 3, 1]"),
        (
            FIRST,
            SECOND,
            (tensor("A", FP32, -1, 4),),
            "step 1 (model 'first') inputs.X: wanted UINT8 [-1, 4], as the model has it, got tensor 'A' from the caller, which is FP32",
        ),
        (
            FIRST,
            SECOND,
            (tensor("C", FP32, -1, 7),),
            "step 2 (model 'second') outputs.Y: wanted FP32 [-1, 2], as the model has it, got tensor 'C' declared in model.toml",
        ),
        (
            replace(FIRST, inputs=(tensor("W", UINT8, 1),)),
            SECOND,
            (),
            "step 1 (model 'first') inputs.X: the model has no such input; it has 'W'",
        ),
        (replace(FIRST, outputs=()), SECOND, (), "step 1 (model 'first') outputs.Y: the model has no such output; it has no outputs"),
        (replace(FIRST, inputs=(A, tensor("X", UINT8, -1, 4))), SECOND, (), "step 1 (model 'first') inputs: the model needs 'A' too"),
        (replace(FIRST, decoupled=True), SECOND, (), "step 1 (model 'first'): wanted a model that answers once, got a decoupled one"),
        (
            FIRST,
            replace(SECOND, max_batch_size=4),
            (),
            "step 2 (model 'second'): wanted a model that takes the pipeline's max_batch_size of 8 rows, its max_batch_size is 4",
        ),
        (IMAGES, SECOND, (A,), "declare [input.NAME.image] on the pipeline"),
    ],
)
def test_refused(first: ModelSpec, second: ModelSpec, declared: tuple[TensorSpec, ...], reason: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        joined(first, second, declared)
    assert reason in caught.value.message


def test_without_a_batch_dimension_any_model_fits() -> None:
    assert joined(replace(FIRST, max_batch_size=0), replace(SECOND, max_batch_size=1), max_batch_size=0).outputs[0] == C
