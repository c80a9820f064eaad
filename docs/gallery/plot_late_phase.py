"""
LatePhase
=========

Norms and heads become members late in training. They are averaged back into one network in the end; here they
are kept, to show where they disagree.

More: :doc:`/methods/late-phase`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.LatePhase(members=5, noise=0.5, collapse=False)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
