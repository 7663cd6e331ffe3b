"""Certificates for agents in pods: the authority, who may have one, and what asking may cost."""
