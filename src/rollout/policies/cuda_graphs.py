"""A module's forward as one launch: captured once for each batch shape, then replayed.

Worth it where launching hundreds of small kernels takes longer than running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

__all__ = ["Graphed"]

WARM_UPS: Final = 3  # before a capture: lazy initialisation (cuBLAS, autotuning) must not be recorded

Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


class Graphed:
    """`graphed(batch)` is `module(batch)`, for modules whose forward is the same kernels each time.

    The module sees tensors alone (a list of instructions would be frozen into the graph), in place and shape the same
    at every replay. What it returns is a copy.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._captured: dict[Shapes, tuple[Any, dict[str, torch.Tensor], torch.Tensor]] = {}

    def __call__(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Replay the graph of this batch's shapes; capture it where there is none yet."""
        tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
        shapes = tuple((key, value.shape, value.dtype) for key, value in sorted(tensors.items()))
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(tensors)
        graph, inputs, output = self._captured[shapes]
        for key, value in tensors.items():
            inputs[key].copy_(value)
        graph.replay()
        return output.clone()

    def _capture(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        inputs = {key: value.clone() for key, value in tensors.items()}
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as torch's documentation of CUDA graphs asks
            for _ in range(WARM_UPS):
                self._module(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another thread may use CUDA meanwhile: a training loop beside its evaluation.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = self._module(inputs)
        return graph, inputs, output
