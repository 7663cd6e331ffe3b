"""The controller's decisions: pure functions, one policy a file, each with its reason in the operator's words."""
