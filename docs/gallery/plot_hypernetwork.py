"""
Hypernetwork
============

One small shared network makes every member's weights from the member's own embeddings.

More: :doc:`/methods/hypernetwork`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Hypernetwork(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
