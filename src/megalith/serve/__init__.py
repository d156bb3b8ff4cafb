"""Serving: frozen models on a host and its cards, behind one engine.

`engine` is what a server talks to; `request` and `failures` are what it hands over and gets back; `runtime`
is how cards, queues and versions work.
"""
