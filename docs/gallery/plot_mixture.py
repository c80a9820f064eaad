"""
Mixture
=======

Members mix their weights out of shared templates; a parameter budget decides how many there are.

More: :doc:`/methods/mixture`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Mixture(members=4)
ensemble = covey.convert(plane.network(), method, example=x[:8])
plane.train(ensemble, x, y)
plane.show(ensemble, x, y)
