"""
MCDropout
=========

The members are one network with its dropout left on at test: nothing to train differently, ten passes to
predict.

More: :doc:`/methods/mc-dropout`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.MCDropout(members=10)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
