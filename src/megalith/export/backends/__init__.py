"""What runs frozen models: one small interface, and the backends behind it.

`base` is the interface, `registry` finds backends by entry point, `conformance` is what each of them must
pass, `tune` measures them on this machine. A backend of one's own is a package that names its class under
`megalith.backends`; nothing here changes for it.
"""
