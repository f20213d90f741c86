"""What drafters make of a trace: every chain that an engine would have drafted, and what of it was accepted.

Here belongs what computes drafters on stored states: the arms of a run with the tables that an engine would give
them, the walk over a text, the drafters that are broken on purpose, and what weights are fed, for calibration. What
the counts prove belongs to `report`; what a running engine counts, to `live`.
"""
