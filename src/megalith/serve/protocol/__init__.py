"""The Open Inference Protocol apart from any transport: messages, tensors, and what they may not hold."""
