"""What memory comes in, in bytes."""

LINE = 64  # of a cache
PAGE = 4096
