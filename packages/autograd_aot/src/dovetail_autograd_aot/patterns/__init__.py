"""Rewrites of captured graphs before they are traced: attention that is written out."""
