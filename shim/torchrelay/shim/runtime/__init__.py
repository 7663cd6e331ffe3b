"""What this process is to the job: one object from the start of the interpreter to its end, and the engine that it makes.

Only `interpreter_entry` and `self_check` may import it.
"""
