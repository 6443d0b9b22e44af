"""The lock of what LLVM keeps for the process: a fork waits for it, also where LLVM was never loaded."""

import threading

from ...locks import anew

lock = anew(globals(), "lock", threading.RLock)
