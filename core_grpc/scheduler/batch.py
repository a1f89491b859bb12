"""From a batch back to its requests: outputs are cut into views of the members' rows. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core_grpc.errors import BackendFailed
from core_grpc.types import Array


def parts_of(outputs: Mapping[str, Array], rows: Sequence[int]) -> Sequence[Mapping[str, Array] | BackendFailed]:
    """As ``unstack``; where the outputs cannot be cut, the error for every member.

    Nobody knows whose rows they are: running the members again one by one would only hide a wrong model.
    """
    try:
        return unstack(outputs, rows)
    except BackendFailed as error:
        return [BackendFailed(error.message) for _ in rows]


def unstack(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[Mapping[str, Array]]:
    """Each member's part of the outputs, as views; ``rows`` are the members' row counts.

    Raises:
        BackendFailed: an output whose first dimension is not the rows of the batch; nobody gets a row of it.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != total:
            raise BackendFailed(
                f"output '{name}': wanted {total} rows, one for each row of the batch, got shape {list(array.shape)}; "
                "a model whose outputs have no batch dimension needs max_batch_size 0"
            )
    if len(rows) == 1:
        return [outputs]
    parts: list[Mapping[str, Array]] = []
    start = 0
    for count in rows:
        stop = start + count
        parts.append({name: array[start:stop] for name, array in outputs.items()})
        start = stop
    return parts
