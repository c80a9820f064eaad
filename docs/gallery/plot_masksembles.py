"""
Masksembles
===========

Each member sees the shared weights through a fixed mask, so there are no more parameters than in one network.

More: :doc:`/methods/masksembles`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Masksembles(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
