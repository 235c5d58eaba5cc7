"""Loading checkpoints: one file per family, strict reading of safetensors, no remote code."""
