"""gRPC for inference, with the stubs of `tritonclient`: `GRPCInferenceService` as its clients call it."""
