"""One attention call: what each query can see, the fused output, and how much attention each key received."""
