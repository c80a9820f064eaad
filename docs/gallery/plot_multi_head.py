"""
MultiHead
=========

One body with four heads: hardly more expensive than one network, and hardly more diverse.

More: :doc:`/methods/multi-head`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.MultiHead(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
