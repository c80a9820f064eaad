"""
FGE
===

The learning rate cycles quickly at the end of training, and the weights at each of its minima are kept as members.

More: :doc:`/methods/fge`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.FGE(start=0.5, cycle=6, high=0.05, low=0.005)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
