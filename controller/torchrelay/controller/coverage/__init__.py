"""How far the job is protected: the report and its level, broken promises, suspect numbers, and moves to other machines for it."""
