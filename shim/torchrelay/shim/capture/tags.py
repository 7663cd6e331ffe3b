"""What a value that is not plain is written as: the first element of a tuple. See `encode`."""

REF, TUPLE, OPAQUE, WEAK, NAMED, METHOD, PARTIAL, PART, SAVE, BOUND, FREE, VALUE = range(12)
