"""What single drafters accept: records of every root, the figures that follow from them, and how they are told.

A comparison of two drafters is the rest of this room; here each is looked at on its own.
"""
