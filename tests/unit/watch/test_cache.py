"""The cache never goes back in time, whatever the order in which lists, events and our own writes arrive."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metainfer.watch.cache import TOMBSTONES_LIMIT, Identity, KindCache, identify

NAMES = st.sampled_from("abc")
Raw = dict[str, Any]


class ServerAndCache(RuleBasedStateMachine):
    """An API server whose events and list pages reach the cache late and in any order.

    Model: the server's own objects. Once everything was delivered and one complete list was taken, both are equal.
    """

    @initialize()
    def start(self) -> None:
        self.version = 0
        self.objects: dict[str, Identity] = {}
        self.cache: KindCache[int] = KindCache()
        self.events: list[tuple[str, Identity]] = []
        self.lists: list[tuple[int, dict[str, Identity]]] = []
        self.seen: dict[str, int] = {}  # uid -> highest version that the cache ever showed

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        """Create or update."""
        self.version += 1
        uid = self.objects[name].uid if name in self.objects else f"{name}-{self.version}"
        self.objects[name] = Identity("ns", name, uid, self.version)
        self.events.append(("MODIFIED", self.objects[name]))

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.objects)))
        self.version += 1
        gone = self.objects.pop(name)
        self.events.append(("DELETED", Identity(gone.namespace, gone.name, gone.uid, self.version)))

    @rule()
    def begin_list(self) -> None:
        self.lists.append((self.version, dict(self.objects)))

    @precondition(lambda self: self.events)
    @rule(data=st.data(), lost=st.booleans())
    def deliver_event(self, data: st.DataObject, lost: bool) -> None:
        kind, identity = self.events.pop(data.draw(st.integers(0, len(self.events) - 1)))
        if not lost:
            self._event(kind, identity)

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def deliver_list(self, data: st.DataObject) -> None:
        self._list(*self.lists.pop(data.draw(st.integers(0, len(self.lists) - 1))))

    def _event(self, kind: str, identity: Identity) -> None:
        if kind == "DELETED":
            self.cache.remove(identity)
        elif self.cache.is_news(identity):
            self.cache.put(identity, identity.version)

    def _list(self, version: int, objects: dict[str, Identity]) -> None:
        for identity in objects.values():
            self._event("MODIFIED", identity)
        for gone in self.cache.find_gone({identity.uid for identity in objects.values()}, version):
            self.cache.remove(Identity(gone.namespace, gone.name, gone.uid, version))

    @invariant()
    def never_goes_back(self) -> None:
        for name in "abc":
            shown = self.cache.get(("ns", name))
            if shown is None:
                continue
            entry = self.cache._entries["ns", name]
            assert shown == entry.identity.version >= self.seen.get(entry.identity.uid, 0)
            self.seen[entry.identity.uid] = shown

    @invariant()
    def shows_nothing_that_never_was(self) -> None:
        assert all(0 < shown <= self.version for shown in self.cache)

    def teardown(self) -> None:
        """A complete list repairs everything: lost events, late pages, deletions that nobody told."""
        self._list(self.version, dict(self.objects))
        assert {name: self.cache.get(("ns", name)) for name in "abc"} == {name: self.objects[name].version if name in self.objects else None for name in "abc"}


ServerAndCache.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestServerAndCache = ServerAndCache.TestCase


def _identity(version: int, *, name: str = "a", uid: str = "u") -> Identity:
    return Identity("ns", name, uid, version)


def test_a_deleted_object_does_not_come_back_with_an_old_page() -> None:
    """A list that was read before the deletion shows it still; its successor of the same name is another object."""
    cache: KindCache[str] = KindCache()
    cache.put(_identity(5), "old")
    assert cache.remove(_identity(7)) == "old"
    assert not cache.is_news(_identity(6))
    assert cache.is_news(_identity(8, uid="another"))


def test_the_deletion_of_a_predecessor_leaves_the_successor() -> None:
    """A late DELETED of an earlier object of the same name removes nothing."""
    cache: KindCache[str] = KindCache()
    cache.put(_identity(9, uid="new"), "new")
    assert cache.remove(_identity(7, uid="old")) is None
    assert cache.get(("ns", "a")) == "new"


def test_a_dropped_object_comes_back_at_its_present_version_only() -> None:
    """What stopped to matter may matter again without having changed, but never in an earlier shape."""
    cache: KindCache[str] = KindCache()
    cache.put(_identity(5), "running")
    assert cache.drop(_identity(8)) == "running"
    assert (cache.is_news(_identity(7)), cache.is_news(_identity(8))) == (False, True)


def test_a_server_restored_from_a_backup_is_believed() -> None:
    """Versions below what was seen are news again, and what the server no longer has is found gone."""
    cache: KindCache[str] = KindCache()
    cache.put(_identity(500), "lost")
    cache.put(_identity(501, name="b", uid="v"), "kept")
    cache.remove(_identity(502, name="c", uid="w"))
    cache.forget_versions()
    assert cache.is_news(_identity(20, name="c", uid="w"))
    assert cache.is_news(_identity(21, name="b", uid="v"))
    assert [gone.name for gone in cache.find_gone({"v"}, 30)] == ["a"]


def test_tombstones_are_bounded() -> None:
    """The oldest are forgotten first: memory does not grow with the age of the process."""
    cache: KindCache[str] = KindCache()
    for number in range(TOMBSTONES_LIMIT + 10):
        cache.remove(_identity(number + 1, uid=str(number)))
    assert len(cache._tombstones) == TOMBSTONES_LIMIT
    assert "9" not in cache._tombstones
    assert "10" in cache._tombstones


@given(st.text(max_size=5))
def test_a_strange_version_is_the_oldest(text: str) -> None:
    """A version that is no number never beats a known one."""
    raw: Raw = {"metadata": {"name": "a", "resourceVersion": text}}
    assert identify(raw).version == (int(text) if text.isdecimal() else 0)
