"""Locks of modules, which the child of a fork has anew.

A child has none of its parent's other threads: a lock that one of them held when the process forked would stay held.
"""

import os
from typing import Any, Callable


def anew(names: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, for the module whose globals are ``names`` to call ``name``.

    In the child of a fork that name stands for another one that ``make`` returns. The module reads it by name each
    time that it takes it, and keeps it nowhere else.

    >>> import threading
    >>> _lock = anew(globals(), "_lock", threading.Lock)
    >>> with _lock:
    ...     pass
    """
    os.register_at_fork(after_in_child=lambda: names.__setitem__(name, make()))
    return make()
