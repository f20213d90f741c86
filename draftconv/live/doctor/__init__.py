"""Why a running server accepts less than it should.

It is asked the prompts of a trace (`asking`); the drafter is replayed as it should be and under every mis-reading that
its engine has (`readings`); what the counts are likeliest of is named, or nothing is (`likelihood`, `judging`).
"""
