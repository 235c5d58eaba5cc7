"""What makes a GPU fast, and nothing that is needed for a result: layer and column kernels, fixed caches, graphs, streams.

Whatever is here has a plain twin above, which runs on a CPU and with SINKSCOPE_FAST=0 (see `base.fast`); without a GPU nothing of
this folder is imported. It lies below all that uses it, and knows tensors and networks only.
"""
