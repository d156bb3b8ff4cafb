"""HTTP/1.1 for inference: heads parsed strictly, bodies read from the socket into the request's room.

Connections own their bytes (`connection`), `routes` says who answers, and nothing here knows a model.
"""
