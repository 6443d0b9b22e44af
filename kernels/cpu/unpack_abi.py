"""What flags of the panels of a GEMM say about tiles that wait, and the words that an unpack function is given."""

from __future__ import annotations

# From bit WAITS of a panel's flags on, three numbers of WAIT_BITS bits: the place of its tile, from 1 on, 0 for a panel
# that does not wait; in the last panel of a group also how many are beside each other and how many adjacent in C.
WAITS, WAIT_BITS, WAIT_MOST = 8, 16, 0xFFFF

U_SRC = 0  # address of the first tile
U_STRIDE, U_PITCH = 1, 2  # bytes from tile to tile, from column to column
U_PANELS = 3  # tiles, of panels that are adjacent in C
U_DST = 4  # what offsets of C are added to
U_LANES, U_COLUMNS = 5, 6  # tables of the first panel's lanes and of the columns
U_VALID, U_COUNT = 7, 8  # lanes and columns that exist
U_STREAM = 9  # past the caches, where whole vectors are aligned
U_WORDS = 10
