"""Row-wise optimizers fused with the backward pass of a lookup; `csrc/optimizer` is the native side."""
