"""Journals of this node's ranks, copies of other nodes', and the room that is left for them."""
