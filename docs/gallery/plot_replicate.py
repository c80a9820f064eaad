"""
Replicate
=========

Each member has its own copy of the tensors you choose, here of the head; the rest is shared.

More: :doc:`/methods/replicate`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Replicate(members=4, where="head", init="fresh")
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
