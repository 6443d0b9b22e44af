"""Words of the thread pool's memory, which generated code and Python share."""

from __future__ import annotations

# words of the pool; each group on a cache line of its own
POOL_BUSY = 0
POOL_JOB = 8  # ctx, row, number of tasks, number of helpers, number of bands
POOL_ACTIVE = 24  # helpers that look at the job or work on it
POOL_OPEN = 32  # the job may be joined
POOL_WORKERS = 40
POOL_QUIT = 41
POOL_SEM_WAIT, POOL_SEM_TRYWAIT, POOL_SEM_POST, POOL_YIELD = 42, 43, 44, 45  # addresses of libc functions
POOL_SPIN = 46  # polls before sleeping; of the caller before yielding, a 32nd of them
POOL_LINES = 48  # one cache line for the caller and for each helper, LINE_WORDS apart: the sem_t of a helper, and
LINE_TAKEN = 7  # how many tasks of a band are taken
LINE_WORDS = 8
MAX_WORKERS = 256
POOL_WORDS = POOL_LINES + LINE_WORDS * (MAX_WORKERS + 1)
