"""
TabM
====

Many members for tables: each sees the inputs through its own random signs and has its own head.

More: :doc:`/methods/tabm`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.TabM(members=16)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
