"""Several machines: which of their commands holds the controller, now and after the one that did is gone."""
