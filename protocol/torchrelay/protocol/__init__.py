"""What the parts of torchrelay share: names, messages, phases, the migration state machine, errors.

Only `convert`, `relay_pb2*` and `tls` need packages from outside of the standard library; the shim imports none of them.
"""
