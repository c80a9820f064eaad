"""
NormEnsemble
============

Each member has its own norms and head; the rest is shared. Noise at the start sets the members apart.

More: :doc:`/methods/norm-ensemble`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.NormEnsemble(members=4, noise=0.5)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
