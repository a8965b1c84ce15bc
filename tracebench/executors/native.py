"""What users of each front end deploy, so that a front end can be seen at its own best.

- dynamo: ``torch.compile`` as it is, that is Inductor with its defaults. The graphs pass through our backend, which
  notes each as it is compiled and hands it on; what is called afterwards is torch's own.
- jit_trace: the trace frozen (weights become constants) and optimised for inference, by TorchScript's own passes. These
  are for eval mode without gradients; in training the trace runs as it is under TorchScript's profiling executor.
- fx: the code that fx generates, which is what replay runs.
- hook: replay, on an NVIDIA GPU under CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tracebench.executors.cuda_graphs import CudaGraphs, CudaRecorder
from tracebench.executors.inductor import Inductor
from tracebench.executors.replay import Replay, Tell, silent


def native(front_end: str, device: torch.device, *, for_verdict: bool, tell: Tell = silent) -> Replay | Inductor:
    """Return a new executor that runs what ``front_end`` captures as its own users do; ``tell`` hears what that is."""
    match front_end:
        case "dynamo":
            tell("native under dynamo is torch.compile with its defaults: the same compiler as executor=inductor")
            return Inductor("native", same_random_numbers=for_verdict, tell=tell)
        case "jit_trace":
            return FrozenScript("native", tell)
        case "fx":
            tell("native under fx is the code that fx generates: the same as executor=replay")
        case "hook" if device.type == "cuda":
            return CudaGraphs(CudaRecorder(device), "native", tell)
        case "hook":
            tell(f"native under hook is replay under CUDA graphs; there are none on {device.type}: the same as replay")
    return Replay("native", tell)


class FrozenScript(Replay):
    """Freezes TorchScript and optimises it for inference, where it is made for inference."""

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return ``module``, a script, as ``torch.jit.optimize_for_inference`` makes it.

        ``module`` keeps its parameters, which the frozen script no longer looks at.

        Raises:
            Exception: what TorchScript's passes raise.
        """
        assert isinstance(module, torch.jit.ScriptModule)
        if module.training or torch.is_grad_enabled():
            why = "the model is in training mode" if module.training else "gradients are recorded"
            self.tell(f"native under jit_trace: {why}, so the trace is not frozen: the same as executor=replay")
            return module
        # Frozen here, or optimize_for_inference would do so, and set the trace to eval, which it is.
        frozen = torch.jit.freeze(module)
        optimized: Callable[..., Any] = torch.jit.optimize_for_inference(frozen)
        return optimized
