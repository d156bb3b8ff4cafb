"""`megalith bench serve --in-process`: whole models, frozen, beside what one would serve them with instead.

suite.py        the benchmark: candidates take turns on the same requests
shapes.py       which models, and requests for them
weights.py      random weights of a model's shape: rows of int8, layers of float32
ours.py         our own frozen model
graphs.py       the same as ONNX graphs: the dense part, and the whole
dense_peers.py  what runs a dense part: torch, onnxruntime, OpenVINO, torchao; in float32 and in int8
whole_peers.py  FBGEMM's quantised lookups before one of them, and onnxruntime from end to end
"""
