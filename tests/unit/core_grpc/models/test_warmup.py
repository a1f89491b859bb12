"""Warm-up samples: what they may say, what is made of them, and that each instance runs them before the model is ready."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.loading import _read
from core_grpc.models.model_config import model_config_from_text
from core_grpc.models.repository import scan_repository
from core_grpc.models.warmup_config import WarmupConfig, WarmupInput, WarmupSample
from core_grpc.models.warmup_data import sample_inputs
from core_grpc.settings import ModelsSettings
from core_grpc.types import Array, Datatype, ModelSpec, TensorSpec
from tests.support.models import write_gather, write_identity
from tests.support.python_models import write_python_model
from tests.support.serving import serving

SAMPLES = """
[warmup]
count = 0
[[warmup.sample]]
name = "speech"
batch_size = 4
count = 2
file = "warmup/speech.npz"
[warmup.sample.input.X]
data = "random"
dims = [16]
datatype = "FP32"
[warmup.sample.input.Y]
file = "warmup/y.raw"
[[warmup.sample]]
"""


def test_everything() -> None:
    x = WarmupInput(is_random=True, dims=(16,), datatype=Datatype.FP32)
    speech = WarmupSample("speech", 4, 2, "warmup/speech.npz", {"X": x, "Y": WarmupInput(file="warmup/y.raw")})
    assert model_config_from_text(SAMPLES).warmup == WarmupConfig(0, (speech, WarmupSample("2")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[warmup]\nsample = 1", r"\[warmup\] sample: wanted tables, each \[\[warmup.sample\]\], got 1"),
        ("[[warmup.sample]]\nbatch = 1", r"\[\[warmup.sample\]\] 1: batch: no such key; it has batch_size, count"),
        ("[[warmup.sample]]\nbatch_size = 0", r"\[\[warmup.sample\]\] 1: batch_size: wanted a whole number from 1 to 65536, got 0"),
        ("[[warmup.sample]]\nfile = 'x.npy'", r"1: file: wanted a file whose name ends with .npz, got 'x.npy'"),
        ("[[warmup.sample]]\ninput = 1", r"1: input: wanted tables by input name, got 1"),
        ("[[warmup.sample]]\n[warmup.sample.input.X]\ndata = 'one'", r"1: input 'X': data: wanted one of zero, random, got 'one'"),
        (
            "[[warmup.sample]]\n[warmup.sample.input.X]\ndata = 'zero'\nfile = 'x'",
            r"input 'X': data: wanted either data or file, got 'zero'",
        ),
        ("[[warmup.sample]]\n[warmup.sample.input.X]\ndims = [-1]", r"input 'X': dims: wanted a list of sizes, .*, got \[-1\]"),
        ("[[warmup.sample]]\n[warmup.sample.input.X]\nshape = [1]", r"input 'X': shape: no such key; it has data, datatype, dims, file"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed, match=message):
        model_config_from_text(text)


def spec_of(max_batch_size: int = 8, **inputs: tuple[Datatype, tuple[int, ...]]) -> ModelSpec:
    """``inputs`` without the batch dimension."""
    lead = (-1,) if max_batch_size else ()
    return ModelSpec(
        "m", "1", "p", max_batch_size, tuple(TensorSpec(name, kind, (*lead, *dims)) for name, (kind, dims) in inputs.items()), ()
    )


def inputs_of(sample: WarmupSample, spec: ModelSpec, directory: Path = Path()) -> Mapping[str, Array]:
    return sample_inputs(sample, spec, {}, directory)


def of_x(batch_size: int = 2, **said: Any) -> WarmupSample:
    return WarmupSample("s", batch_size, inputs={"X": WarmupInput(**said)})


@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("is_random", [True, False])
def test_made_data_has_the_models_datatype_and_the_samples_rows(datatype: Datatype, is_random: bool) -> None:
    (array,) = inputs_of(of_x(3, is_random=is_random, dims=(5, 2)), spec_of(X=(datatype, (-1, 2)))).values()
    assert (array.dtype, array.shape) == (datatype.dtype, (3, 5, 2))
    assert len(set(array.reshape(-1).tolist())) > 1 if is_random else not any(array.reshape(-1).tolist())
    (again,) = inputs_of(of_x(3, is_random=is_random, dims=(5, 2)), spec_of(X=(datatype, (-1, 2)))).values()
    assert (again == array).all()
    if datatype is Datatype.BYTES:
        assert {len(text) for text in array.reshape(-1).tolist()} == {16 if is_random else 0}


def test_what_a_sample_does_not_name() -> None:
    spec = ModelSpec(
        *("m", "1", "p", 8),
        (
            TensorSpec("X", Datatype.FP32, (-1, 2)),
            TensorSpec("START", Datatype.INT32, (-1, 1)),
            TensorSpec("O", Datatype.FP32, (-1, 2), optional=True),
        ),
        (),
    )
    start = np.ones((2, 1), np.int32)
    inputs = sample_inputs(WarmupSample("s", 2), spec, {"START": start}, Path())
    assert {name: array.tolist() for name, array in inputs.items()} == {"X": [[0, 0], [0, 0]], "START": [[1], [1]]}
    given = WarmupSample("s", 2, inputs={"START": WarmupInput()})
    assert sample_inputs(given, spec, {"START": start}, Path())["START"].tolist() == [[0], [0]]


ROW = np.array([1, 2, 3], np.float32)
ROWS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
TEXT_ROW = b"\2\0\0\0ab\0\0\0\0\1\0\0\0c"


@pytest.mark.parametrize(
    ("content", "datatype", "wanted"),
    [
        (ROW.tobytes(), Datatype.FP32, [[1, 2, 3]] * 2),
        (ROWS.tobytes(), Datatype.FP32, ROWS.tolist()),
        (TEXT_ROW, Datatype.BYTES, [[b"ab", b"", b"c"]] * 2),
        (TEXT_ROW + TEXT_ROW[:6] * 3, Datatype.BYTES, [[b"ab", b"", b"c"], [b"ab"] * 3]),
    ],
)
def test_raw_files_hold_one_row_or_all(tmp_path: Path, content: bytes, datatype: Datatype, wanted: list[Any]) -> None:
    (tmp_path / "x.raw").write_bytes(content)
    assert inputs_of(of_x(file="x.raw"), spec_of(X=(datatype, (3,))), tmp_path)["X"].tolist() == wanted
    # A model without a batch dimension has one row, and none of its own.
    if len(wanted) == 2 and wanted[0] == wanted[1]:
        assert inputs_of(of_x(1, file="x.raw"), spec_of(0, X=(datatype, (3,))), tmp_path)["X"].tolist() == wanted[0]


@pytest.mark.parametrize("recorded", [ROW, ROWS, ROWS.astype(">f4"), np.asfortranarray(ROWS)])
def test_recorded_arrays_hold_one_row_or_all(tmp_path: Path, recorded: Array) -> None:
    np.save(tmp_path / "x.npy", recorded)
    np.savez_compressed(tmp_path / "all.npz", X=recorded)
    spec = spec_of(X=(Datatype.FP32, (-1,)))
    for sample in (of_x(file="x.npy"), WarmupSample("s", 2, file="all.npz")):
        array = inputs_of(sample, spec, tmp_path)["X"]
        assert array.tolist() == np.broadcast_to(recorded, (2, 3)).tolist()
        assert array.dtype == Datatype.FP32.dtype
        assert array.flags.c_contiguous


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A model's directory with files that are not what a sample needs."""
    directory = (tmp_path / "m").resolve()
    (directory / "folder").mkdir(parents=True)
    (directory / "short.raw").write_bytes(b"\0" * 10)
    (directory / "torn.raw").write_bytes(b"\xff\0\0\0ab")
    np.save(directory / "double.npy", np.zeros(3))
    np.save(directory / "wide.npy", np.zeros(7, np.float32))
    np.save(directory / "code.npy", np.array([{}], object), allow_pickle=True)
    np.savez(directory / "other.npz", Z=ROW)
    (directory / "nonsense.npy").write_bytes(b"nonsense")
    (directory / "nonsense.npz").write_bytes(b"nonsense")
    os.mkfifo(directory / "pipe")
    (tmp_path / "secret").write_bytes(ROW.tobytes())
    (directory / "link").symlink_to(tmp_path / "secret")
    return directory


FP32, BYTES = (Datatype.FP32, (3,)), (Datatype.BYTES, (3,))


@pytest.mark.parametrize(
    ("sample", "kind", "message"),
    [
        (of_x(9), FP32, "batch_size: wanted 1 to 8, the model's max_batch_size, got 9"),
        (WarmupSample("s", inputs={"Z": WarmupInput()}), FP32, "the model has no input 'Z'; it has 'X'"),
        (WarmupSample("s", file="other.npz"), FP32, "the model has no input 'Z'; it has 'X'"),
        (of_x(datatype=Datatype.INT8), FP32, "input 'X': datatype: wanted FP32, as the model has it, got INT8"),
        (of_x(dims=(4,)), FP32, r"input 'X': dims: wanted \[3\], as the model has it \(-1 is any\), got \[4\]"),
        (of_x(), (Datatype.FP32, (-1, 2)), r"input 'X': dims: wanted a size for each -1 of \[-1, 2\], got none"),
        (of_x(dims=(1 << 40,)), (Datatype.FP32, (-1,)), "input 'X': wanted at most 1073741824 bytes, got "),
        (of_x(file="short.raw"), FP32, r"input 'X': file 'short.raw': wanted 12 bytes, for FP32 \[3\], or 24 for 2 rows, got 10"),
        (of_x(file="short.raw"), BYTES, r"file 'short.raw': wanted elements .* got one that ends too early"),
        (of_x(file="torn.raw"), BYTES, "file 'torn.raw': wanted elements .* got one that ends too early"),
        (of_x(file="double.npy"), FP32, "file 'double.npy': wanted float32, for FP32, got float64"),
        (of_x(file="wide.npy"), FP32, r"file 'wide.npy': wanted shape \[3\] for one row, or \[2, 3\] for all, got \[7\]"),
        (of_x(file="wide.npy", dims=(8,)), (Datatype.FP32, (-1,)), r"file 'wide.npy': wanted shape \[8\] for one row"),
        (of_x(file="wide.npy", dims=(7,)), FP32, r"dims: wanted \[3\], as the model has it"),
        (of_x(file="code.npy"), BYTES, "file 'code.npy': wanted an array of NumPy: "),
        (of_x(file="nonsense.npy"), FP32, "file 'nonsense.npy': wanted an array of NumPy: "),
        (WarmupSample("s", file="nonsense.npz"), FP32, "file 'nonsense.npz': wanted arrays of NumPy: "),
        (of_x(file="nothing"), FP32, "file 'nothing' cannot be read: No such file"),
        (of_x(file="folder"), FP32, "file 'folder' cannot be read: Is a directory|file 'folder': wanted a file .* got no plain file"),
        (of_x(file="pipe"), FP32, "file 'pipe': wanted a file .* got no plain file"),
        (of_x(file="link"), FP32, "file 'link' is outside the model's directory"),
        (of_x(file="../secret"), FP32, "file '../secret' is outside the model's directory"),
        (of_x(file="/etc/hostname"), FP32, "file '/etc/hostname' is outside the model's directory"),
    ],
)
def test_a_sample_that_does_not_fit_says_why(
    files: Path, sample: WarmupSample, kind: tuple[Datatype, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelLoadFailed, match=message) as caught:
        inputs_of(sample, spec_of(X=kind), files)
    assert str(files) not in str(caught.value)


NOTES = '''
    """Answers with X, and notes each request that it gets."""
    import json, os

    class Model:
        def initialise(self, context):
            self.notes = context.directory / "notes"

        def note(self, request):
            seen = {name: array.tolist() for name, array in request.inputs.items()}
            with open(self.notes, "a") as file:
                file.write(json.dumps({"process": os.getpid(), **seen}) + "\\n")
'''
BATCHED = "        def execute(self, requests):\n            return [self.note(r) or {'Y': r.inputs['X']} for r in requests]\n"
STREAMING = "        async def execute(self, request):\n            self.note(request)\n            yield {'Y': request.inputs['X']}\n"


def notes_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "notes").read_text().splitlines()]


async def test_each_instance_runs_each_sample_before_the_model_is_ready_and_nobody_counts_it(tmp_path: Path) -> None:
    config = """
max_batch_size = 4
[instances]
count = 2
[[warmup.sample]]
batch_size = 3
count = 2
[[warmup.sample]]
[warmup.sample.input.X]
file = "warmup/x.npy"
"""
    tensors: dict[str, Any] = {"inputs": {"X": ("FP32", [-1, 2])}, "outputs": {"Y": ("FP32", [-1, 2])}}
    directory = write_python_model(tmp_path, "notes", NOTES + BATCHED, **tensors, config=config)
    (tmp_path / "notes" / "warmup").mkdir()
    np.save(tmp_path / "notes" / "warmup" / "x.npy", np.array([1, 2], np.float32))
    async with serving(tmp_path) as served:
        statistics = served.find("notes").statistics
        assert (statistics.success.count, statistics.inference_count, statistics.execution_count, statistics.batches) == (0, 0, 0, {})
    seen = notes_of(directory)
    processes = {note["process"] for note in seen}
    assert len(processes) == 2
    for process in processes:
        zeros = [[0, 0]] * 3
        assert [note["X"] for note in seen if note["process"] == process] == [zeros, zeros, [[1, 2]]]


async def test_control_inputs_are_those_of_a_sequence_of_one_request(tmp_path: Path) -> None:
    config = """
max_batch_size = 4
[sequence]
start = "START"
ready = "READY"
end = "END"
correlation_id = "CORRID"
[warmup]
count = 1
[[warmup.sample]]
batch_size = 2
[warmup.sample.input.END]
data = "zero"
"""
    controls = {"START": ("FP32", [-1, 1]), "READY": ("BOOL", [-1, 1]), "END": ("INT32", [-1, 1]), "CORRID": ("BYTES", [-1, 1])}
    code = NOTES.replace("array.tolist()", "str(array[0, 0])") + BATCHED
    tensors: dict[str, Any] = {"inputs": {"X": ("FP32", [-1, 2]), **controls}, "outputs": {"Y": ("FP32", [-1, 2])}}
    directory = write_python_model(tmp_path, "notes", code, **tensors, config=config)
    async with serving(tmp_path) as served:
        assert served.find("notes").spec.inputs[0].name == "X"
    of_one = {"START": "1.0", "READY": "True", "END": "1", "CORRID": "b'1'", "X": "0.0"}
    seen = [{name: note[name] for name in of_one} for note in notes_of(directory)]
    assert seen == [of_one, of_one, {**of_one, "END": "0"}]


async def test_a_decoupled_model_runs_its_samples_to_their_end(tmp_path: Path) -> None:
    config = "[python]\ndecoupled = true\n[[warmup.sample]]\ncount = 2\n[warmup.sample.input.X]\ndims = [3]\n"
    tensors: dict[str, Any] = {"inputs": {"X": ("FP32", [-1])}, "outputs": {"Y": ("FP32", [-1])}}
    directory = write_python_model(tmp_path, "notes", NOTES + STREAMING, **tensors, config=config)
    async with serving(tmp_path) as served:
        assert served.find_decoupled("notes").statistics.success.count == 0
    assert [note["X"] for note in notes_of(directory)] == [[0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("name = 'far'\n[warmup.sample.input.I]\nfile = 'far.npy'", "model.toml: [[warmup.sample]] 'far' failed: "),
        ("[warmup.sample.input.I]\nfile = 'none.npy'", "model.toml: [[warmup.sample]] '1': file 'none.npy' cannot be read: No such file"),
    ],
)
async def test_a_sample_that_fails_keeps_the_model_from_being_served(tmp_path: Path, sample: str, reason: str) -> None:
    write_gather(tmp_path, f"[[warmup.sample]]\n{sample}\n")
    np.save(tmp_path / "gather" / "far.npy", np.array([99], np.int64))
    async with serving(tmp_path) as served:
        (entry,) = served.entries()
        assert entry.reason.startswith(reason)


async def test_a_sample_with_the_right_data_is_served_where_zeros_fail(tmp_path: Path) -> None:
    failing = "max_batch_size = 2\n[identity]\nfail_value = 0.0\n"
    write_identity(tmp_path, "zeros", {"X": ("FP32", [-1, 2])}, failing)
    write_identity(tmp_path, "data", {"X": ("FP32", [-1, 2])}, f"{failing}[[warmup.sample]]\n[warmup.sample.input.X]\ndata = 'random'\n")
    async with serving(tmp_path) as served:
        reasons = {entry.name: entry.reason for entry in served.entries()}
    assert reasons["zeros"].startswith("warm-up with zeros at batch 1 failed ([warmup] count = 0 skips it): ")
    assert reasons["data"] == ""


def test_zeros_are_run_at_every_size_that_a_batch_is_padded_to(tmp_path: Path) -> None:
    config = "max_batch_size = 8\n[batching]\nallowed_batch_sizes = [2, 4, 8]\n[warmup]\ncount = 3\n"
    write_identity(tmp_path, "m", {"X": ("FP32", [-1, 1])}, config)
    (entry,) = scan_repository(tmp_path)
    *_, runs = _read(entry, ModelsSettings())
    assert [(len(run.inputs["X"]), run.count) for run in runs] == [(1, 3), (2, 3), (4, 3), (8, 3)]
