"""Private names of torch that the package uses. Where one is gone, a command ends with one line."""

from __future__ import annotations

import torch

from attnres_cli.errors import TorchError

try:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    fused_sdp_choice = torch.ops.aten._fused_sdp_choice.default
    _ = torch._C._current_graph_task_id  # nn/depthmix/gradients.py, nn/trunk/moe.py
    _ = torch.ops.aten._log_softmax_backward_data  # variants/parts/sinkhorn.py
except (ImportError, AttributeError) as gone:
    raise TorchError(
        f"attnres does not work with torch {torch.__version__} yet ({gone}): "
        "pip install 'torch>=2.9,<2.16'"
    ) from gone

__all__ = ["TorchDispatchMode", "fused_sdp_choice", "tree_leaves"]
