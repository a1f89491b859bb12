"""Sequence batching on the wire, against Triton's message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf import json_format
from onnx import helper

from core_grpc.data_plane import ConfiguredModel
from core_grpc.models.model_config import model_config_from_text
from core_grpc.models.sequence_model import sequence_limits
from core_grpc.rpc.model_config_codec import encode_model_config
from core_grpc.scheduler.live_sequences import Strategy
from core_grpc.types import Datatype
from tests.support import models
from tests.support.serving import serving

CONTROLS = 'start = "START"\nready = "READY"\nend = "END"\ncorrelation_id = "CORRID"\n'
STATE = '[[sequence.state]]\ninput = "SUM"\noutput = "SUM_OUT"\n'


@pytest.mark.parametrize(
    ("config", "strategy"),
    [
        (
            'strategy = "direct"\nminimum_slot_utilization = 0.5\n',
            {"direct": {"maxQueueDelayMicroseconds": "2000", "minimumSlotUtilization": 0.5}},
        ),
        (
            "max_candidate_sequences = 7\n",
            {"oldest": {"maxCandidateSequences": 7, "preferredBatchSize": [2, 4], "maxQueueDelayMicroseconds": "2000"}},
        ),
    ],
)
async def test_a_models_configuration_has_it_as_triton_writes_it(tmp_path: Path, config: str, strategy: dict[str, object]) -> None:
    one = (Datatype.INT32, ("batch", 1))
    inputs: dict[str, tuple[Datatype, Sequence[int | str]]] = {"X": one, "SUM": (Datatype.INT32, (1, "batch")), "START": one}
    nodes = [helper.make_node("Transpose", ["SUM"], ["sum"]), helper.make_node("Add", ["X", "sum"], ["Y"])]
    nodes += [helper.make_node("Transpose", ["Y"], ["SUM_OUT"])]
    inputs |= {"READY": (Datatype.FP32, ("batch", 1)), "END": (Datatype.BOOL, ("batch", 1)), "CORRID": (Datatype.UINT64, ("batch", 1))}
    model = models.onnx_model(nodes, inputs, {"Y": one, "SUM_OUT": inputs["SUM"]})
    batching = "[batching]\nmax_queue_delay_ms = 2\npreferred_batch_sizes = [2, 4]\n"
    models.write_onnx(tmp_path, "m", model, f"max_batch_size = 8\n{batching}[sequence]\n{config}{CONTROLS}{STATE}")
    async with serving(tmp_path) as registry:
        made = registry.find("m")
        configured = ConfiguredModel(made.spec, made.config, made.backend, made.model_file, made.declared.engine_spec)
        message = json_format.MessageToDict(encode_model_config(configured))
    assert "dynamicBatching" not in message
    assert [item["name"] for item in message["input"]] == ["X"]
    state = {"dataType": "TYPE_INT32", "dims": ["1"]}
    assert message["sequenceBatching"] == {
        "maxSequenceIdleMicroseconds": "1000000",
        "controlInput": [
            {"name": "START", "control": [{"int32FalseTrue": [0, 1]}]},
            {"name": "READY", "control": [{"kind": "CONTROL_SEQUENCE_READY", "fp32FalseTrue": [0.0, 1.0]}]},
            {"name": "END", "control": [{"kind": "CONTROL_SEQUENCE_END", "boolFalseTrue": [False, True]}]},
            {"name": "CORRID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "dataType": "TYPE_UINT64"}]},
        ],
        "state": [{"inputName": "SUM", "outputName": "SUM_OUT", **state, "initialState": [{**state, "zeroData": True, "name": "SUM"}]}],
        **strategy,
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("[sequence]\n", (Strategy.OLDEST, 1024, 8, 8, 100)),
        ("[sequence]\nmax_candidate_sequences = 3\n[batching]\npreferred_batch_sizes = [2, 4]\n", (Strategy.OLDEST, 3, 8, 2, 100)),
        ('[sequence]\nstrategy = "direct"\n[queue]\nmax_requests = 9\n', (Strategy.DIRECT, 8, 8, 1, 9)),
        ('[sequence]\nstrategy = "direct"\nminimum_slot_utilization = 0.6\n', (Strategy.DIRECT, 8, 8, 5, 100)),
    ],
)
async def test_what_the_batcher_is_told(tmp_path: Path, config: str, expected: tuple[object, ...]) -> None:
    models.write_id(tmp_path, Datatype.FP32, "max_batch_size = 8\n")
    async with serving(tmp_path) as registry:
        spec = registry.find("id_fp32").spec
    limits = sequence_limits(model_config_from_text(config), spec, 1, 100, 1000)
    assert (limits.strategy, limits.slots, limits.max_batch_size, limits.enough, limits.max_queue_requests) == expected
