"""The state of one capture attempt, as ledgers that each have one owner."""
