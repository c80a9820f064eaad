"""
BatchEnsemble
=============

Each member scales the shared weights by two small vectors. The gradient of the shared weights is the mean
over members.

More: :doc:`/methods/batch-ensemble`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.BatchEnsemble(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
