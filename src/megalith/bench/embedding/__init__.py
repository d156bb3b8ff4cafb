"""`megalith bench embedding`: looking rows up and updating them, over many shapes.

suite.py      the benchmark: candidates take turns on the same batches
shapes.py     which shapes are measured, and their random ids
memory.py     whether a shape fits in the free memory
roofline.py   what this machine's memory can do at most
"""
