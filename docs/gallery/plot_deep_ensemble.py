"""
DeepEnsemble
============

Four networks that share nothing, each initialised anew: the strongest baseline, at four times the price.

More: :doc:`/methods/deep-ensemble`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.DeepEnsemble(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
