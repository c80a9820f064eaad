"""
SharedLowRank
=============

All members share one low-rank update, and each scales it by two small vectors. As for LowRank, the network
itself was never trained here.

More: :doc:`/methods/shared-low-rank`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.SharedLowRank(members=4, rank=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
