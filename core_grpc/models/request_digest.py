"""A request's content as 32 bytes: two requests with the same digest ask the same.

BLAKE2b with a secret of the process: nobody can prepare two requests that share a digest. Everything of variable length is framed, so
that ``["ab", "c"]`` and ``["a", "bc"]`` differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from core_grpc.types import Array, ParameterValue

_DIGEST_BYTES = 32


def request_digest(secret: bytes, inputs: Mapping[str, Array], parameters: Mapping[str, ParameterValue]) -> bytes:
    """The digest of the inputs (names, dtypes, shapes, content) and parameters, in whatever order they come.

    Args:
        secret: at most 64 bytes.
        inputs: arrays of any dtype in C order; object arrays hold ``bytes``.
    """
    names = sorted(inputs)
    # The number of a dtype says what it is within this process, as the secret does; its name takes ten times as long to come by.
    described = [(name, inputs[name].dtype.num, inputs[name].shape) for name in names]
    # repr tells True, 1, 1.0 and "1" apart, and quotes what is in a name.
    header = repr((described, sorted(parameters.items()) if parameters else ())).encode("utf-8", "surrogatepass")
    hasher = blake2b(len(header).to_bytes(8, "little"), digest_size=_DIGEST_BYTES, key=secret)
    hasher.update(header)
    for name in names:
        flat = inputs[name].reshape(-1)
        if flat.dtype.hasobject:
            elements = flat.tolist()
            hasher.update(np.fromiter(map(len, elements), np.int64, len(elements)).data)
            for element in elements:
                hasher.update(element)
        else:
            # Only NumPy's own dtypes can be read as they are.
            hasher.update(flat.data if flat.dtype.isbuiltin == 1 else flat.view(np.uint8).data)
    return hasher.digest()
