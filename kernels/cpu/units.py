"""What memory comes in, in bytes, and what planners and kernels both count in."""

LINE = 64  # of a cache
PAGE = 4096
ASK_TERMS = 8  # terms of an operand that is read in place, between two requests
