"""Which layers of the target TensorRT-LLM captures: those that its serve file names, by the layer just left."""

from __future__ import annotations

from collections.abc import Sequence

from draftconv.errors import Refused


def spelled(boundaries: Sequence[int]) -> tuple[int, ...]:
    """Boundaries for `eagle3_layers_to_capture`.

    Raises:
        Refused: boundary 0 is the output of no layer.
    """
    if boundaries[0] == 0:
        raise Refused(
            "TensorRT-LLM cannot capture boundary 0",
            why="eagle3_layers_to_capture names the outputs of layers, and boundary 0 enters the first",
        )
    return tuple(b - 1 for b in boundaries)
