"""The migration protocol: a state machine that does no input or output, its transition table and what each event does."""
