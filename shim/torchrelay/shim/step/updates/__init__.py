"""The optimizer's updates of a step: the gate in front of them, and what comes early, late or uncounted."""
