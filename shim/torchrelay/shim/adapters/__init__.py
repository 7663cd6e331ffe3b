"""Everything private of torch or CPython that the shim touches: one small adapter a subject, with the versions it was seen on.

What needs no knowledge of training belongs here. Only `backends` and what lies above it may import it.
"""
