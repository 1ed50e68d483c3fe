"""Residual paths of published models by name, each as the designs that it is composed of.

nanochat      Karpathy 2026, gpt.py: the stream and the embedding weighed before each layer, the
              middle taken out at the end. Left out, as no residual: value embeddings, the token
              before smeared into each.
modded-2024   Jordan et al., modded-nanogpt, record of 2024-11-10: long skips, the first layer's
              values mixed in, the embedding weighed before each layer from a start of (1, 0).
modded-2026   the same, pull request 259: the last layer and what the head sees mixed for each
              input, earlier streams in the last layer's values. Left out: gates made of tokens, one
              skip past several layers, a layer without attention.
"""

from attnres_cli.nn.residual import register_preset

register_preset("nanochat", "backout+x0")
register_preset("modded-2024", "unet+vres:weights=sum+x0:init=neutral")
register_preset("modded-2026", "mudd:layers=2,window=2+resv")
