"""How agents, commands and other listeners reach one job's controller."""
