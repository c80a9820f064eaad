"""
SuperWeights
============

Members put together from shared slabs of templates, within a parameter budget.

More: :doc:`/methods/superweights`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.SuperWeights(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
