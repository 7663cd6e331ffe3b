"""The journal of a rank: what stands in it, who writes it where, and copies of it on another machine.

Only `comm`, `data`, `set_up` and `gradients`, and what lies above them, may import it.
"""
