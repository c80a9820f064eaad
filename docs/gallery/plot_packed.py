"""
Packed
======

Four narrow networks that share nothing and together cost about as much as the one they were made from.

More: :doc:`/methods/packed`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Packed(members=4, alpha=2)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
