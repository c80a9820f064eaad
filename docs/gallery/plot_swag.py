"""
SWAG
====

A Gaussian is fitted to the weights along one training run, and the members are drawn from it.

More: :doc:`/methods/swag`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.SWAG(members=20, start=0.5, rank=20)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
