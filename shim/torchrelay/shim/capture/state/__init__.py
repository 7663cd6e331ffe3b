"""What a walk leaves: nodes, the edges between them, their keys, and which parts of an object are state.

Within `capture` only `models`, `iteration` and `scripted_calls`, and what lies above them, may import it.
"""
