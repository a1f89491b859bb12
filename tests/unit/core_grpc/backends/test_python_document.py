"""The models of docs/python-models.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.types import InferRequest
from tests.support.programs import ROOT
from tests.support.serving import serving

PAGE = (ROOT / "docs" / "python-models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def write(repository: Path, name: str, config: str, code: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "model.toml").write_text(config, encoding="utf-8")
    (repository / name / "1" / "model.py").write_text(code, encoding="utf-8")


async def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    (declared, decoupled), (shout, words) = blocks("toml"), blocks("python")
    write(tmp_path, "shout", declared, shout)
    tensors = '[input.TEXT]\ndatatype = "BYTES"\nshape = [1]\n[output.WORD]\ndatatype = "BYTES"\nshape = [1]\n'
    write(tmp_path, "words", decoupled + tensors, words)
    async with serving(tmp_path) as served:
        model = served.find("shout")
        answer = await model.infer({"TEXT": np.array([[b"one"], ["zwölf".encode()]], dtype=object)}, 2)
        assert answer.outputs["LOUD"].tolist() == [[b"ONE!"], ["ZWÖLF!".encode()]]
        with pytest.raises(InvalidArgument, match="TEXT: wanted a text, got an empty one"):
            await model.infer({"TEXT": np.array([[b""]], dtype=object)}, 1)
        stream = served.find_decoupled("words").stream({"TEXT": np.array([b"a few words"], dtype=object)}, InferRequest("words", "", {}))
        assert [answer.outputs["WORD"].tolist() async for answer in stream] == [[b"a"], [b"few"], [b"words"]]
