"""
Late
====

One network is trained for 60 % of the time, and then an ensemble around it, at the price of one network.

More: :doc:`/methods/late`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.late(covey.BatchEnsemble(members=4, init="ones", noise=0.5), start=0.6)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
