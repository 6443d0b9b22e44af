"""A bounded cache whose hits take one dictionary lookup and no lock."""

from __future__ import annotations

from typing import Any, Hashable, Mapping

_NOTHING: Mapping[Hashable, Any] = {}  # the old generation of caches that have none, as those of most contractions


class BoundedCache:
    """Keeps between ``size`` and ``2 * size`` of the entries used last.

    Two generations: a full young one becomes the old one, and what is then found among the old moves back to the
    young. That forgets roughly the least recently used, and several threads may get and put without a lock: the
    worst that a race does is to forget an entry early.

    >>> cache = BoundedCache(1)
    >>> cache.put("a", 1); cache.put("b", 2); cache.put("c", 3)
    >>> cache.get("a"), cache.get("b"), cache.get("c")
    (None, 2, 3)
    """

    __slots__ = ("size", "_young", "_old")

    def __init__(self, size: int) -> None:
        self.size = size
        self._young: dict[Hashable, Any] = {}
        self._old: Mapping[Hashable, Any] = _NOTHING

    def get(self, key: Hashable) -> Any:
        """The entry of ``key``, or None."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Hashable, value: Any) -> None:
        """Remember ``value``, which is not None."""
        if len(self._young) >= self.size:
            self._old = self._young
            self._young = {}
        self._young[key] = value

    def values(self) -> list[Any]:
        """All entries, oldest generation first."""
        return list({**self._old, **self._young}.values())

    def clear(self) -> None:
        """Forget everything."""
        self._young = {}
        self._old = _NOTHING

    def __len__(self) -> int:
        return len(self._young) + len(self._old.keys() - self._young.keys())
