"""Answers the API server's reviews over HTTP."""
