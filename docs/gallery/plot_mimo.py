"""
MIMO
====

One network takes two inputs and gives two answers in a single pass; the members share its capacity.

More: :doc:`/methods/mimo`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.MIMO(members=2, rho=0.5)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
