"""FLOPs by formula. Conventions: 2 a multiply-add; matrix products alone (no norms, activations, softmax, rotary positions); causal
attention counts the positions it may see, half of the square; a backward pass costs two forward ones; the embedding is a look-up.
"""

from __future__ import annotations

from depthbench.residual.protocol import Residual


def forward_flops_per_token(residual: Residual) -> float:
    """Mean forward FLOPs a token of a full context: backbone matrices, head, attention over the context, and the design itself.

    `2·(backbone matrices + V·d) + 2·context·d·M + own`. Over a sequence of T tokens the first and third terms are the published
    prefill figure `2·N_backbone·T + 2·T²·d·M`.
    """
    shape = residual.shape
    matrices = shape.backbone_parameters - shape.n_sublayers * shape.d_model
    dense = 2.0 * (matrices + shape.vocab_size * shape.d_model)
    attention = 2.0 * shape.context * shape.d_model * shape.n_layers
    return dense + attention + residual.own_flops(shape.context)


def training_flops(residual: Residual, tokens: int) -> float:
    """Forward and backward over `tokens` tokens."""
    return 3.0 * tokens * forward_flops_per_token(residual)
