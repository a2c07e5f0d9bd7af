"""Revisions of the store's schema, in the order in which they were made; run by ``metainfer.store.schema``.

A new one is a file ``versions/rNNNN_WHAT.py`` with the next number, which only adds: an older operator that is rolled back to refuses
the store instead of losing what it does not know. ``tests/unit/store/test_schema.py`` fails while revisions and ``tables`` differ.
"""
