"""The joint trace of a captured graph: forward and backward as one functional graph."""
