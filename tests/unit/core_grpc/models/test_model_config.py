"""model.toml: what it may say, and that everything else is refused by file, key, wanted and got."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.model_config import ModelConfig, OutputConfig, model_config_from_file, model_config_from_text
from core_grpc.models.version_policy import ALL, VersionPolicy, specific
from core_grpc.types import Datatype

EVERYTHING = """
description = "one line"
license = "Apache-2.0"
backend = "onnxruntime"
max_batch_size = 16
versions = [1, 3]
[batching]
max_queue_delay_ms = 1.5

[queue]
max_rows = 64
[instances]
count = 2
[warmup]
count = 0
[onnxruntime]
intra_op_threads = 1
[input.X]
datatype = "FP32"
shape = [-1, 3, 224, 224]
description = "pixels"
[input.X.image]
size = 224
[output.logits]
labels = "labels.txt"
[output.probabilities]
from = "logits"
apply = "softmax"
"""


def test_everything() -> None:
    config = model_config_from_text(EVERYTHING)
    assert (config.description, config.license, config.backend, config.max_batch_size) == ("one line", "Apache-2.0", "onnxruntime", 16)
    assert config.versions == specific(["1", "3"])
    assert (config.batching.max_queue_delay_s, config.queue.max_rows, config.instances[0].count, config.warmup.count) == (0.0015, 64, 2, 0)
    assert config.backend_options == {"onnxruntime": {"intra_op_threads": 1}}
    assert (config.inputs["X"].datatype, config.inputs["X"].shape) == (Datatype.FP32, (-1, 3, 224, 224))
    assert config.inputs["X"].image == {"size": 224}
    assert config.outputs == {"logits": OutputConfig(labels="labels.txt"), "probabilities": OutputConfig(source="logits", apply="softmax")}


def test_nothing() -> None:
    assert model_config_from_text("") == ModelConfig()
    assert model_config_from_file(Path("no such file")) == ModelConfig()


def test_versions() -> None:
    assert model_config_from_text('versions = "latest"').versions == VersionPolicy(latest=1)
    assert model_config_from_text("versions = { latest = 3 }").versions == VersionPolicy(latest=3)
    assert model_config_from_text('versions = "all"').versions == ALL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope = 1", r"model.toml nope: no such key; it has .*max_batch_size"),
        ("[batching]\nmax_delay = 1", r"model.toml: \[batching\] max_delay: no such key; it has allowed_batch_sizes, batch_input"),
        ("[input.X]\ndtype = 1", r"model.toml: \[input.X\] dtype: no such key; it has .*datatype"),
        ("[output.Y]\nlabel = 1", r"model.toml: \[output.Y\] label: no such key"),
        ("max_batch_size = -1", r"model.toml max_batch_size: wanted a whole number from 0 to 65536, got -1"),
        ("max_batch_size = true", r"max_batch_size: wanted a whole number .*, got true"),
        ("max_batch_size = 1.5", r"max_batch_size: wanted a whole number .*, got 1.5"),
        ('backend = "tf"', r"backend: wanted one of onnxruntime, python, identity, pipeline, got 'tf'"),
        ("description = 1", "description: wanted a text of one line, got 1"),
        ('description = "a\\nb"', "description: wanted a text of one line"),
        ("batching = 1", r"\[batching\]: wanted a table, got 1"),
        ("[batching]\nmax_queue_delay_ms = -1", r"\[batching\] max_queue_delay_ms: wanted a number from 0 to 60000, got -1"),
        ("[batching]\nmax_queue_delay_ms = nan", r"\[batching\] max_queue_delay_ms: wanted a number"),
        ("[instances]\ncount = 0", r"\[instances\] count: wanted a whole number from 1 to 1024, got 0"),
        ('[input.X]\ndatatype = "float"', r"\[input.X\] datatype: wanted one of BOOL, .*, got 'float'"),
        ("[input.X]\nshape = [-2]", r"\[input.X\] shape: wanted a list of sizes, -1 for a variable one, got \[-2\]"),
        ("[input.X]\nimage = 5", r"\[input.X.image\]: wanted a table, got 5"),
        ("input = 5", r"\[input\]: wanted a table, got 5"),
        ('[output.Y]\nfrom = "Z"', r"\[output.Y\]: a derived output has both from and apply"),
        ("versions = []", r'versions: wanted a list of version numbers, "latest", "all", or { latest = how many }'),
        ("versions = { latest = 0 }", r"\[versions\] latest: wanted a whole number from 1 to 1000, got 0"),
        ("versions = { newest = 1 }", r"\[versions\] newest: no such key; it has latest"),
        ('versions = ["1"]', "versions: wanted"),
        ("a = ", "model.toml is not TOML"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed, match=message) as caught:
        model_config_from_text(text)
    assert caught.value.message.startswith("model.toml")


def test_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadFailed, match="not UTF-8"):
        model_config_from_file(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelLoadFailed, match=r"cannot be read: Is a directory"):
        model_config_from_file(path)
