"""
Slimmable
=========

Networks of several widths in one: narrow members are the leading channels of the widest.

More: :doc:`/methods/slimmable`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Slimmable(members=3)
networks = [plane.network(width) for width in (16, 32, 64)]
ensemble = covey.convert(networks, method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
