"""The experiment's config: the schema of every group, how it is composed, and all that can be wrong with it.

Decided here: which keys there are and what they mean; that a wrong config ends in one message with every problem in it.
Left to others: what is done with the values.
"""
