"""What passes over a joint graph tell one another of nodes (see `dovetail_prims.node_facts`)."""

from __future__ import annotations

from dovetail_prims.node_facts import Fact

# The tangents, as a bit set, of which a call must have one for the node's value, a gradient, to be
# there at all.
GIVEN_WITH: Fact[int] = Fact("given_with")
# The backward computes it in eager, be it that the forward does, too.
ASKED_BY_BACKWARD: Fact[bool] = Fact("asked_by_backward")
# It draws random numbers, or checks, for what nobody reads.
UNUSED: Fact[bool] = Fact("unused")
# A placeholder: the whole storage of an input, not the input.
WHOLE_STORAGE: Fact[bool] = Fact("whole_storage")
# What constant the value is made of; "" for none (see `constants`).
CONSTANT_KIND: Fact[str] = Fact("constant_kind")
