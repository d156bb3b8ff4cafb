"""Ids and tensors of requests, cut and put together."""
