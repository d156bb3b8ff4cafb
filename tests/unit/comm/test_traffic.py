"""Counted messages."""

from megalith.comm.traffic import TrafficCounter


def test_bytes_and_calls_are_counted_by_name():
    traffic = TrafficCounter()
    traffic.count("vectors", 100)
    traffic.count("vectors", 50)
    traffic.count("indices", 8)
    assert (traffic.sent_bytes["vectors"], traffic.calls["vectors"], traffic.total_bytes) == (150, 2, 158)
    traffic.reset()
    assert (traffic.total_bytes, traffic.calls["vectors"]) == (0, 0)
