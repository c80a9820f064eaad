"""
LowRank
=======

Each member adds a small low-rank update to a network that stays as it is. Here that network was never
trained, so the updates do all the work; with pretrained weights they do little and cost little.

More: :doc:`/methods/low-rank`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.LowRank(members=4, rank=2)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
