"""
Economical
==========

A hypernetwork with one member is trained first. Late in training it gets ten members, each with its own embeddings
and head.

More: :doc:`/methods/economical`.
"""

import plane

import covey

x, y = plane.moons()
method = covey.Economical(members=10)
ensemble = plane.fit(method, x, y)
plane.show(ensemble, x, y)
