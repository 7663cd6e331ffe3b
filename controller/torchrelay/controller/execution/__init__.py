"""Carries migrations out: feeds the state machine, answers its questions with decisions, and sends what it orders."""
