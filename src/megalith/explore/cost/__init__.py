"""What a plan costs before it is simulated: seconds, bytes on links, bytes of memory.

A `Plan` goes in; the pipeline simulation and the memory check read what comes out.

compute.py       seconds of a layer's operators on a device
layers.py        one layer with its tensor-, context- and expert-parallel communication
stages.py        layers, seconds and parameters of each virtual stage
transfers.py     activations and their gradients between stages
replicas.py      gradients and parameters among the replicas of a stage
traffic.py       bytes a step that leave the members of each level of the cluster
step.py          all of these as the costs of one step under a schedule
activations.py   bytes that a layer keeps for its backward pass
memory.py        bytes of the fullest device
dlrm.py          the same for recommendation models, whose tables are sharded over all devices
"""
