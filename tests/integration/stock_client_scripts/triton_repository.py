"""Asks a server that serves tests/support/triton_repository.py, and prints what it got as JSON. Arguments: the server's address."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def tensor(name: str, array: np.ndarray, datatype: str) -> triton.InferInput:
    item = triton.InferInput(name, list(array.shape), datatype)
    item.set_data_from_numpy(array)
    return item


def simple(client: triton.InferenceServerClient) -> dict[str, object]:
    """Four requests at once, which fill a preferred batch."""
    config = client.get_model_config("simple", as_json=True)["config"]
    metadata = client.get_model_metadata("simple")
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    pending = [Future() for _ in range(4)]
    for number, future in enumerate(pending):
        inputs = [tensor("INPUT0", a, "INT32"), tensor("INPUT1", a + number, "INT32")]
        client.async_infer("simple", inputs, lambda result, error, future=future: future.set_result(result or error))
    answers = [future.result(20) for future in pending]
    top = client.infer(
        "simple",
        [tensor("INPUT0", a, "INT32"), tensor("INPUT1", a, "INT32")],
        outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=1)],
    )
    statistics = client.get_inference_statistics("simple", "3").model_stats[0]
    return {
        "platform": metadata.platform,
        "versions": list(metadata.versions),
        "shapes": [list(item.shape) for item in (*metadata.inputs, *metadata.outputs)],
        "max_batch_size": config["max_batch_size"],
        "dims": [item["dims"] for item in config["input"]],
        "policy": config["version_policy"],
        "file": config["default_model_filename"],
        "instances": sum(group.get("count", 1) for group in config["instance_group"]),
        "delay_us": config["dynamic_batching"]["max_queue_delay_microseconds"],
        "without_effect": config["parameters"]["tensorgate_fields_without_effect"]["string_value"],
        "sums": [answer.as_numpy("OUTPUT0")[0].tolist() == (2 * a[0] + number).tolist() for number, answer in enumerate(answers)],
        "differences": [answer.as_numpy("OUTPUT1")[0, 0].item() for answer in answers],
        "top": top.as_numpy("OUTPUT0")[0, 0].decode(),
        "batched": statistics.execution_count < statistics.inference_count,
    }


def ensemble(client: triton.InferenceServerClient) -> dict[str, object]:
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 5, np.int32)
    answer = client.infer("ensemble_add_sub", [tensor("A", a, "INT32"), tensor("B", b, "INT32")])
    config = client.get_model_config("ensemble_add_sub", as_json=True)["config"]
    return {
        "platform": config["platform"],
        "steps": [step["model_name"] for step in config["ensemble_scheduling"]["step"]],
        "is_right": [bool((answer.as_numpy(f"TWICE_{name}") == 2 * array).all()) for name, array in (("A", a), ("B", b))],
    }


def sequence(client: triton.InferenceServerClient) -> dict[str, object]:
    """Two sequences whose requests alternate, one with a text for an id, and a request of a sequence that never began."""
    sums: dict[str, list[int]] = {"7": [], "text": []}
    ids: list[int | str] = [7, "text"]
    for step, value in enumerate([1, 2, 3]):
        for sequence_id in ids:
            factor = 1 if sequence_id == 7 else 10
            answer = client.infer(
                "simple_sequence",
                [tensor("INPUT", np.array([[value * factor]], np.int32), "INT32")],
                sequence_id=sequence_id,
                sequence_start=step == 0,
                sequence_end=step == 2,
            )
            sums[str(sequence_id)].append(int(answer.as_numpy("OUTPUT")[0, 0]))
    try:
        client.infer("simple_sequence", [tensor("INPUT", np.array([[1]], np.int32), "INT32")], sequence_id=8)
        refused = "nothing"
    except InferenceServerException as error:
        refused = str(error.status())
    config = client.get_model_config("simple_sequence", as_json=True)["config"]["sequence_batching"]
    metadata = client.get_model_metadata("simple_sequence")
    return {
        "sums": sums,
        "refused": refused,
        "inputs": [item.name for item in metadata.inputs],
        "outputs": [item.name for item in metadata.outputs],
        "candidates": config["oldest"]["max_candidate_sequences"],
        "idle_us": config["max_sequence_idle_microseconds"],
        "controls": [item["name"] for item in config["control_input"]],
        "states": [item["input_name"] for item in config["state"]],
    }


def main(address: str) -> None:
    client = triton.InferenceServerClient(address)
    index = {item["name"]: item.get("reason", "") for item in client.get_model_repository_index(as_json=True)["models"]}
    print(json.dumps({"index": index, "simple": simple(client), "ensemble": ensemble(client), "sequence": sequence(client)}))


main(*sys.argv[1:])
