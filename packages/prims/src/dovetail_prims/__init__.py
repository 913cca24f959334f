"""The op language of Dovetail: dialects, fake tensors, shape rules, decompositions."""
