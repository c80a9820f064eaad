"""
Snapshot
========

The learning rate restarts five times in one training run, and the weights at the end of each cycle are kept as
members.

More: :doc:`/methods/snapshot`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Snapshot(members=5)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
