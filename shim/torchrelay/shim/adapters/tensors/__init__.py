"""Tensors of special classes, their storages and their gradients."""
