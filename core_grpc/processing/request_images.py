"""Encoded images in requests: BYTES inputs of models that declare image preprocessing, turned into the numbers that the model takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import numpy as np

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.request_checks import check_rows
from core_grpc.types import Array, Datatype, ModelSpec, Tensor

if TYPE_CHECKING:
    from core_grpc.processing.images import ImagePreprocessing


class RequestImages:
    """Decodes on ``pool``, off the event loop. Images of more than ``max_pixels`` are refused."""

    def __init__(self, pool: Executor, max_pixels: int) -> None:
        self._pool = pool
        self._max_pixels = max_pixels

    async def preprocessed(
        self, spec: ModelSpec, recipes: Mapping[str, ImagePreprocessing], inputs: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], float]:
        """The inputs with encoded images turned into numbers, and the seconds that took. ``recipes`` are by input name.

        Raises:
            InvalidArgument, InvalidTensor: not an image, too large, or not one for each row.
        """
        encoded = [name for name in recipes if name in inputs and inputs[name].datatype is Datatype.BYTES]
        if not encoded:
            return inputs, 0.0
        began = time.monotonic()
        decoded = {name: await self._decoded(spec, name, inputs[name].array, recipes[name]) for name in encoded}
        return {**inputs, **decoded}, time.monotonic() - began

    async def _decoded(self, spec: ModelSpec, name: str, elements: Array, recipe: ImagePreprocessing) -> Tensor:
        """Decodes each element to a row, on the processing threads."""
        # Imaging takes time and memory to import: only where a model wants it.
        from core_grpc.processing.images import preprocess_image  # noqa: PLC0415

        if elements.ndim not in (1, 2) or (elements.ndim == 2 and elements.shape[1] != 1):
            raise InvalidTensor(
                f"unexpected shape for input '{name}' for model '{spec.name}'. Expected [n] or [n,1] encoded images, "
                f"got {list(elements.shape)}"
            )
        images = elements.reshape(-1).tolist()
        if spec.max_batch_size:
            check_rows(spec, len(images))
        elif len(images) != 1:
            raise InvalidTensor(f"input '{name}' for model '{spec.name}' takes one encoded image, got {len(images)}")
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(self._pool, preprocess_image, image, recipe, self._max_pixels) for image in images]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        rows: list[Array] = []
        for position, result in enumerate(results):
            if isinstance(result, InvalidArgument):
                raise InvalidTensor(f"input {quoted(name)} element {position}: {result.message}") from result
            if isinstance(result, BaseException):
                raise result
            rows.append(result)
        datatype = next(item.datatype for item in spec.inputs if item.name == name)
        return Tensor(datatype, np.stack(rows))
