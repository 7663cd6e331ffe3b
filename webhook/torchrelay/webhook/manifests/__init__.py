"""Documents as people and API servers write them: YAML, templates, JSON patches."""
