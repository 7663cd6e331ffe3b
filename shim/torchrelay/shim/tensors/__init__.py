"""The bytes of tensors: read without a copy, summed up, compared, and followed."""
