"""Calls every method of a stock tritonclient: ``python suite.py grpc|grpc.aio|http|http.aio ADDRESS``. Fails at the first surprise.

A program of its own, run with the newest release and with one two years old; it may import neither our code nor our stubs.
"""

import asyncio
import importlib
import inspect
import json
import queue
import sys
import time
from pathlib import Path

import numpy as np
import tritonclient.utils as triton_utils
import tritonclient.utils.shared_memory as shm

KIND, ADDRESS, ID_MODELS = sys.argv[1], sys.argv[2], Path(sys.argv[3])
IS_GRPC, IS_AIO = KIND.startswith("grpc"), KIND.endswith("aio")
triton = importlib.import_module(f"tritonclient.{KIND}")
plain = importlib.import_module(f"tritonclient.{KIND.partition('.')[0]}")


async def done(value):
    return await value if inspect.isawaitable(value) else value


async def failure(call):
    try:
        await done(call())
    except triton_utils.InferenceServerException as error:
        return error
    raise AssertionError("wanted an InferenceServerException")


async def described(call, **kwargs):
    """What a question answers, as plain Python."""
    return await done(call(as_json=True, **kwargs) if IS_GRPC else call(**kwargs))


def tensor(name, array, datatype, *, binary=True):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array) if IS_GRPC else made.set_data_from_numpy(array, binary_data=binary)
    return made


def pair(datatype="INT32", dtype=np.int32):
    return [tensor(f"INPUT{i}", np.arange(16, dtype=dtype)[None] * (1 if i else 2), datatype) for i in (0, 1)]


SUM, DIFFERENCE = [3 * i for i in range(16)], list(range(16))


async def health_and_metadata(client):
    assert await done(client.is_server_live())
    assert await done(client.is_server_ready())
    assert await done(client.is_model_ready("simple"))
    assert await done(client.is_model_ready("simple", "1"))
    assert not await done(client.is_model_ready("nope"))
    assert (await described(client.get_server_metadata))["name"] == "triton"
    metadata = await described(client.get_model_metadata, model_name="simple")
    assert metadata["versions"] == ["1"], metadata
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 16]
    config = await described(client.get_model_config, model_name="simple")
    config = config["config"] if IS_GRPC else config
    assert (config["name"], int(config["max_batch_size"]), config["input"][0]["data_type"]) == ("simple", 8, "TYPE_INT32")
    assert "Request for unknown model" in (await failure(lambda: client.get_model_metadata("nope"))).message()
    error = await failure(lambda: client.get_model_metadata("simple", "two"))
    assert "failed to get model version from specified version string 'two'" in error.message() or "404" in str(error.status())


async def inference(client):
    answer = await done(client.infer("simple", pair(), request_id="7", parameters={"a": 1, "b": "x", "c": True, "d": 0.5}))
    assert answer.as_numpy("OUTPUT0")[0].tolist() == SUM
    assert answer.as_numpy("OUTPUT1")[0].tolist() == DIFFERENCE
    assert (answer.get_response().id if IS_GRPC else answer.get_response()["id"]) == "7"
    one = await done(client.infer("simple", pair(), model_version="1", outputs=[triton.InferRequestedOutput("OUTPUT1")]))
    assert one.as_numpy("OUTPUT1")[0].tolist() == DIFFERENCE
    assert one.as_numpy("OUTPUT0") is None
    small = await done(client.infer("simple_int8", pair("INT8", np.int8)))
    assert small.as_numpy("OUTPUT0").dtype == np.int8
    assert small.as_numpy("OUTPUT0")[0].tolist() == SUM
    for options in ({"priority": 1}, {"timeout": 5_000_000}):
        assert (await done(client.infer("simple", pair(), **options))).as_numpy("OUTPUT0")[0].tolist() == SUM
    assert "nope" in (await failure(lambda: client.infer("nope", pair()))).message()


async def strings(client):
    numbers = [np.array([str(n * (1 if i else 2)) for n in range(16)], dtype=object)[None] for i in (0, 1)]
    answer = await done(client.infer("simple_string", [tensor(f"INPUT{i}", numbers[i], "BYTES") for i in (0, 1)]))
    assert [int(text) for text in answer.as_numpy("OUTPUT0")[0]] == SUM
    texts = np.array([[b"", b"a", "é€".encode(), b"\xff\x00\xfe", b"x" * 70_000]], dtype=object)
    back = await done(client.infer("simple_identity", [tensor("INPUT0", texts, "BYTES")]))
    assert back.as_numpy("OUTPUT0")[0].tolist() == texts[0].tolist()


async def datatypes(client):
    kinds = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64"]
    for kind in kinds:
        given = np.array([[0, 1, 1, 0]], dtype=triton_utils.triton_to_np_dtype(kind))
        answer = (await done(client.infer(f"id_{kind.lower()}", [tensor("X", given, kind)]))).as_numpy("Y")
        assert (answer.dtype, answer.tolist()) == (given.dtype, given.tolist()), kind
    if not IS_GRPC:
        given = np.array([[1.5, np.inf, -np.inf, 2**60]], dtype=np.float64)
        outputs = [triton.InferRequestedOutput("Y", binary_data=False)]
        answer = await done(client.infer("id_fp64", [tensor("X", given, "FP64", binary=False)], outputs=outputs))
        assert answer.as_numpy("Y").tolist() == given.tolist()


async def classes(client):
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    answer = await done(client.infer("simple", pair(), outputs=outputs))
    assert answer.as_numpy("OUTPUT0").tolist() == [[b"45:15", b"42:14"]]


async def sequences(client):
    for model, ids in (("simple_sequence", (7, "seven")), ("simple_dyna_sequence", (1001,)), ("simple_string_dyna_sequence", ("1002",))):
        for sequence in ids:
            got = []
            for step, value in enumerate((5, 6, 7)):
                value_input = [tensor("INPUT", np.array([[value]], np.int32), "INT32")]
                flags = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 2}
                got.append(int((await done(client.infer(model, value_input, **flags))).as_numpy("OUTPUT")[0, 0]))
            wanted = {"simple_sequence": [6, 6, 7], "simple_dyna_sequence": [6, 6, 7 + 1001]}
            assert got == wanted.get(model, [5, 11, 18 + 1002]), (model, got)
    late = [tensor("INPUT", np.array([[1]], np.int32), "INT32")]
    error = await failure(lambda: client.infer("simple_sequence", late, sequence_id=99))
    assert "must specify the START flag on the first request of the sequence" in error.message()


async def ensemble(client):
    metadata = await described(client.get_model_metadata, model_name="simple_ensemble")
    assert metadata["platform"] == "ensemble", metadata
    assert [item["name"] for item in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    config = await described(client.get_model_config, model_name="simple_ensemble")
    config = config["config"] if IS_GRPC else config
    assert (config["platform"], int(config["max_batch_size"]), config.get("backend", "")) == ("ensemble", 8, "")
    assert "dynamic_batching" not in config
    steps = config["ensemble_scheduling"]["step"]
    assert [(step["model_name"], int(step["model_version"])) for step in steps] == [("simple_part", -1), ("simple_part", 1)]
    assert steps[1]["input_map"] == {"INPUT0": "sum", "INPUT1": "difference"}
    assert steps[0]["output_map"] == {"OUTPUT0": "sum", "OUTPUT1": "difference"}
    answer = await done(client.infer("simple_ensemble", pair(), request_id="e"))
    assert answer.as_numpy("OUTPUT0")[0].tolist() == [4 * i for i in range(16)]
    assert answer.as_numpy("OUTPUT1")[0].tolist() == [2 * i for i in range(16)]
    one = await done(client.infer("simple_ensemble", pair(), outputs=[triton.InferRequestedOutput("OUTPUT1")]))
    assert one.as_numpy("OUTPUT0") is None
    assert one.as_numpy("OUTPUT1")[0].tolist() == [2 * i for i in range(16)]
    wrong = [tensor("INPUT0", np.zeros((1, 16), np.int32), "INT32")]
    assert "missing input 'INPUT1' for model 'simple_ensemble'" in (await failure(lambda: client.infer("simple_ensemble", wrong))).message()
    counts = {}
    for model in ("simple_ensemble", "simple_part"):
        stats = (await described(client.get_inference_statistics, model_name=model))["model_stats"][0]
        counts[model] = int(stats["inference_stats"]["success"]["count"])
    assert counts["simple_part"] == 2 * counts["simple_ensemble"] >= 4, counts
    await done(client.unload_model("simple_part"))
    assert not await done(client.is_model_ready("simple_ensemble"))
    error = await failure(lambda: client.infer("simple_ensemble", pair()))
    assert "step 1 (model 'simple_part')" in error.message()
    assert error.status() in ("StatusCode.UNAVAILABLE", "503"), error.status()
    await done(client.load_model("simple_part"))
    await done(client.unload_model("simple_ensemble", unload_dependents=True))
    assert not await done(client.is_model_ready("simple_part"))
    await done(client.load_model("simple_ensemble"))
    assert await done(client.is_model_ready("simple_ensemble"))
    assert (await done(client.infer("simple_ensemble", pair()))).as_numpy("OUTPUT0")[0].tolist() == [4 * i for i in range(16)]


async def repository(client):
    index = await described(client.get_model_repository_index)
    models = {item["name"]: item for item in (index["models"] if IS_GRPC else index)}
    assert models["simple"]["state"] == "READY"
    await done(client.unload_model("simple_int8"))
    assert not await done(client.is_model_ready("simple_int8"))
    assert "unknown model" in (await failure(lambda: client.infer("simple_int8", pair("INT8", np.int8)))).message()
    await done(client.load_model("simple_int8"))
    await done(client.load_model("simple_int8", config=json.dumps({"max_batch_size": "16"})))
    config = await described(client.get_model_config, model_name="simple_int8")
    assert int((config["config"] if IS_GRPC else config)["max_batch_size"]) == 16
    await done(client.load_model("simple_int8"))
    content = (ID_MODELS / "id_fp32" / "1" / "model.onnx").read_bytes()
    await done(client.load_model("id_fp32", config='{"backend": "onnxruntime"}', files={"file:3/model.onnx": content}))
    assert (await described(client.get_model_metadata, model_name="id_fp32"))["versions"] == ["3"]
    await done(client.load_model("id_fp32"))
    for bad in ({"config": '"nonsense'}, {"config": "{}", "files": {"file:" + "A" * 256: b"a"}}):
        assert "failed to load" in (await failure(lambda: client.load_model("simple", **bad))).message()
    assert "failed to load" in (await failure(lambda: client.load_model("wrong_model_name"))).message()


async def statistics(client):
    async def counts():
        stats = await described(client.get_inference_statistics, model_name="simple", model_version="1")
        stats = stats["model_stats"][0]
        runs = {int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in stats["batch_stats"]}
        return int(stats["inference_count"]), int(stats["execution_count"]), int(stats["inference_stats"]["success"]["count"]), runs

    rows, runs, requests, by_size = await counts()
    for size in (1, 3, 3):
        inputs = [tensor(f"INPUT{i}", np.zeros((size, 16), np.int32), "INT32") for i in (0, 1)]
        await done(client.infer("simple", inputs))
    after = await counts()
    assert (after[0] - rows, after[1] - runs, after[2] - requests) == (7, 3, 3)
    assert after[3].get(3, 0) - by_size.get(3, 0) == 2
    assert sum(after[3].values()) == after[1]
    assert len((await described(client.get_inference_statistics))["model_stats"]) > 10
    assert "is not available" in (await failure(lambda: client.get_inference_statistics("nope"))).message()


async def settings(client):
    def value(answer, name):
        setting = (answer["settings"] if IS_GRPC else answer)[name]
        return setting["value"] if IS_GRPC and "value" in setting else setting

    first = await described(client.get_trace_settings)
    assert value(first, "trace_level") == ["OFF"], first
    changed = {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}
    changed = await described(client.update_trace_settings, model_name="simple", settings=changed)
    assert value(changed, "trace_level") == ["TIMESTAMPS"]
    await described(client.update_trace_settings, model_name="simple", settings={"trace_level": None, "trace_rate": None})
    assert value(await described(client.get_trace_settings, model_name="simple"), "trace_level") == ["OFF"]
    await failure(lambda: client.update_trace_settings(settings={"trace_file": "/tmp/x"}))
    logs = await described(client.get_log_settings)
    assert "log_format" in (logs["settings"] if IS_GRPC else logs)
    await described(client.update_log_settings, settings={"log_verbose_level": 1, "log_format": "ISO8601"})
    back = await described(client.update_log_settings, settings={"log_verbose_level": 0, "log_format": "default"})
    assert value(back, "log_format") in ("default", {"string_param": "default"}), back
    await failure(lambda: client.update_log_settings(settings={"log_file": "x"}))
    if not IS_GRPC:  # Over gRPC the client itself refuses it.
        await failure(lambda: client.update_log_settings(settings={"log_info": "yes"}))


async def shared_memory(client):
    size = 64
    there, back = (shm.create_shared_memory_region(name, f"/{name}_{KIND}_{time.time_ns()}", 2 * size) for name in ("there", "back"))
    texts = shm.create_shared_memory_region("texts", f"/texts_{KIND}_{time.time_ns()}", 1000)
    try:
        shm.set_shared_memory_region(there, [np.full((1, 16), n, np.int32) for n in (5, 2)])
        for name, region in (("there", there), ("back", back)):
            await done(
                client.register_system_shared_memory(name, region._shm_key if hasattr(region, "_shm_key") else key_of(region), 2 * size)
            )
        status = await described(client.get_system_shared_memory_status)
        assert {"there", "back"} <= set(status["regions"] if IS_GRPC else [item["name"] for item in status])
        inputs, outputs = [], []
        for i in (0, 1):
            inputs.append(triton.InferInput(f"INPUT{i}", [1, 16], "INT32"))
            inputs[-1].set_shared_memory("there", size, offset=i * size)
            outputs.append(triton.InferRequestedOutput(f"OUTPUT{i}"))
            outputs[-1].set_shared_memory("back", size, offset=i * size)
        await done(client.infer("simple", inputs, outputs=outputs))
        got = [shm.get_contents_as_numpy(back, np.int32, [1, 16], offset=i * size)[0].tolist() for i in (0, 1)]
        assert got == [[7] * 16, [3] * 16], got
        assert "already in manager" in (await failure(lambda: client.register_system_shared_memory("there", "x", 1))).message()
        await failure(lambda: client.register_system_shared_memory("other", "/../../etc/passwd", 1))
        outputs[0].set_shared_memory("back", size - 1)
        assert "at least 64 bytes" in (await failure(lambda: client.infer("simple", inputs, outputs=outputs))).message()
        await done(client.unregister_system_shared_memory("there"))
        assert "Unable to find shared memory region: 'there'" in (await failure(lambda: client.infer("simple", inputs))).message()
        given = np.array([b"one", b"", "ü".encode()], dtype=object)
        packed = triton_utils.serialize_byte_tensor(given)
        shm.set_shared_memory_region(texts, [packed])
        await done(client.register_system_shared_memory("texts", key_of(texts), 1000))
        text_input = triton.InferInput("INPUT0", [1, 3], "BYTES")
        text_input.set_shared_memory("texts", len(packed.item()))
        answer = await done(client.infer("simple_identity", [text_input]))
        assert answer.as_numpy("OUTPUT0")[0].tolist() == given.tolist()
        await done(client.unregister_system_shared_memory())
        assert (
            "Unable to find system shared memory region"
            in (await failure(lambda: client.get_system_shared_memory_status("back"))).message()
        )
    finally:
        for region in (there, back, texts):
            shm.destroy_shared_memory_region(region)
    assert not (await described(client.get_cuda_shared_memory_status)) or IS_GRPC
    handle = b"QUFB" * 21 + b"QQ=="  # 64 bytes
    assert "GPU" in (await failure(lambda: client.register_cuda_shared_memory("gpu", handle, 0, 64))).message()
    await done(client.unregister_cuda_shared_memory())


def key_of(region):
    """The key of a region, which the classes of different releases keep under different names."""
    return next(getattr(region, name) for name in ("_shm_key", "_key", "shm_key") if hasattr(region, name))


async def deadlines_and_cancellation(client):
    slow = [tensor("X", np.ones((1, 1), np.float32), "FP32")]
    if IS_GRPC:
        error = await failure(lambda: client.infer("slow", slow, client_timeout=0.05))
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED", error
    if KIND == "grpc":
        results = queue.Queue()
        context = client.async_infer("slow", slow, callback=lambda result, error: results.put(error))
        context.cancel()
        assert "CANCELLED" in str(results.get(timeout=10).status())


async def compression(client):
    texts = np.array([["compress me " * 1000]], dtype=object)
    text_input = [tensor("INPUT0", texts, "BYTES")]
    for algorithm in ("gzip", "deflate"):
        options = (
            {"compression_algorithm": algorithm}
            if IS_GRPC
            else {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
        )
        answer = await done(client.infer("simple_identity", text_input, **options))
        assert answer.as_numpy("OUTPUT0")[0, 0] == texts[0, 0].encode()


async def asynchronous(client):
    if KIND == "grpc":
        results = queue.Queue()
        for _ in range(8):
            client.async_infer("simple", pair(), callback=lambda result, error: results.put((result, error)))
        answers = [results.get(timeout=10) for _ in range(8)]
        assert all(error is None and result.as_numpy("OUTPUT0")[0].tolist() == SUM for result, error in answers)
    elif KIND == "http":
        handles = [client.async_infer("simple", pair()) for _ in range(8)]
        assert all(handle.get_result().as_numpy("OUTPUT0")[0].tolist() == SUM for handle in handles)
    else:
        answers = await asyncio.gather(*(client.infer("simple", pair()) for _ in range(8)))
        assert all(answer.as_numpy("OUTPUT0")[0].tolist() == SUM for answer in answers)


def repeat_inputs(values, delay_ms=0):
    return [
        tensor("IN", np.array(values, np.int32), "INT32"),
        tensor("DELAY", np.full(len(values), delay_ms, np.uint32), "UINT32"),
        tensor("WAIT", np.array([0], np.uint32), "UINT32"),
    ]


async def streams(client):
    if KIND == "grpc":
        stream_sync(client)
    elif KIND == "grpc.aio":
        await stream_aio(client)
    else:
        error = await failure(lambda: client.infer("repeat_int32", repeat_inputs([1])))
        assert "decoupled" in error.message()


VALUES = [11, 7, 5, 3, 2, 0, 1]
NEGATED = [-value for value in VALUES]
# What Triton's example simple_grpc_sequence_stream_infer_client.py sends and wants, without -d and with it.
SEQUENCES = [
    ("simple_sequence", 1, [0, *VALUES], [1, *VALUES]),
    ("simple_sequence", 2, [100, *NEGATED], [101, *NEGATED]),
    ("simple_sequence", "a text", [20, *NEGATED], [21, *NEGATED]),
    ("simple_dyna_sequence", 1, [0, *VALUES], [1, *VALUES[:-1], 1 + 1]),
    ("simple_dyna_sequence", 2, [100, *NEGATED], [101, *NEGATED[:-1], -1 + 2]),
    ("simple_string_dyna_sequence", "3", [20, *NEGATED], [20, 9, 2, -3, -6, -8, -8, -9 + 3]),
]


def stream_sync(client):
    results = queue.Queue()
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    for number in range(20):
        given = np.full((1, 16), number, np.int32)
        client.async_stream_infer("simple", [tensor(f"INPUT{i}", given, "INT32") for i in (0, 1)], request_id=str(number))
    client.async_stream_infer("nope", pair(), request_id="bad")
    client.async_stream_infer("repeat_int32", repeat_inputs([4, 5, 6]), request_id="many", enable_empty_final_response=True)
    for number, (model, sequence, values, _) in enumerate(SEQUENCES):
        for step, value in enumerate(values):
            given = [tensor("INPUT", np.array([[value]], np.int32), "INT32")]
            flags = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == len(values) - 1}
            client.async_stream_infer(model, given, request_id=f"sequence {number}", **flags)
    client.stop_stream()  # Joins: everything must have come.
    got = [results.get_nowait() for _ in range(results.qsize())]
    failed = [error for _, error in got if error]
    assert len(failed) == 1
    assert "nope" in failed[0].message()
    answers = [result for result, error in got if not error]
    sums = [int(item.as_numpy("OUTPUT0")[0, 0]) for item in answers if item.get_response().model_name == "simple"]
    assert sums == [2 * number for number in range(20)], "in the order of the requests"
    for number, (*_, wanted) in enumerate(SEQUENCES):
        came = [int(item.as_numpy("OUTPUT")[0, 0]) for item in answers if item.get_response().id == f"sequence {number}"]
        assert came == wanted, (number, came)
    many = [item for item in answers if item.get_response().id == "many"]
    assert [int(item.as_numpy("OUT")[0]) for item in many[:-1]] == [4, 5, 6]
    finals = [item.get_response().parameters["triton_final_response"].bool_param for item in many]
    assert finals == [False, False, False, True]
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    client.async_stream_infer("repeat_int32", repeat_inputs([1, 2], 60_000))
    began = time.monotonic()
    client.stop_stream(cancel_requests=True)
    assert time.monotonic() - began < 5


async def stream_aio(client):
    async def requests():
        for number in range(10):
            yield {"model_name": "repeat_int32", "inputs": repeat_inputs([number] * 3), "request_id": str(number)}
            yield {"model_name": "simple", "inputs": pair(), "request_id": "simple"}

    got = {}
    async for result, error in client.stream_infer(requests()):
        assert error is None
        response = result.get_response()
        got.setdefault(response.id, []).append(int(result.as_numpy("OUT")[0]) if response.id != "simple" else 1)
    assert got == {**{str(number): [number] * 3 for number in range(10)}, "simple": [1] * 10}


async def http_only(client):
    if IS_GRPC:
        return
    answer = await done(client.infer("simple", pair(), query_params={"trace": "1"}, headers={"x-mine": "1"}))
    assert answer.as_numpy("OUTPUT0")[0].tolist() == SUM
    body, length = plain.InferenceServerClient.generate_request_body(pair_for(plain), outputs=None)
    assert length is None or length <= len(body)


def pair_for(module):
    made = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for item in made:
        item.set_data_from_numpy(np.zeros((1, 16), np.int32))
    return made


async def plugins(client):
    from importlib import import_module

    auth = import_module("tritonclient.http.auth" if not IS_GRPC else "tritonclient.grpc.auth")
    client.register_plugin(auth.BasicAuth("somebody", "secret"))
    assert client.plugin() is not None
    assert await done(client.is_server_live())
    client.unregister_plugin()


STEPS = [
    health_and_metadata, inference, strings, datatypes, classes, sequences, ensemble, repository, statistics, settings, shared_memory,
    deadlines_and_cancellation, compression, asynchronous, streams, http_only, plugins,
]  # fmt: skip


async def main():
    client = triton.InferenceServerClient(ADDRESS)
    for step in STEPS:
        await step(client)
        print(step.__name__, flush=True)
    await done(client.close())


asyncio.run(main())
