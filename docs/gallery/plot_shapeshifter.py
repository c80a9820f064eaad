"""
ShapeShifter
============

Layers of any shape read their templates out of shared vectors, within a parameter budget.

More: :doc:`/methods/shapeshifter`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.ShapeShifter(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
