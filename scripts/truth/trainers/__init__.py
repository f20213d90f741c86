"""The trainers' own classes as judges: what they load of draftconv's output, and what draftconv reads of theirs.

    steps        what a drafter computes: three teacher-forced draft steps, by the reference or by a trainer
    trainer      what every trainer's module has; TRAINERS, all of them
    shared       all that is taken from the rest of the truth package
    cases        drafters, and the trainers that are asked about each
    judging      one case, asked: a row
    quantized    drafters that a trainer quantized and exported, dequantized by draftconv
    stored       what quantized bytes stand for, by formulas of its own
    folding      what a trainer's class of two norms makes of a drafter of one
    kimi         what stands in for ModelOpt's decoder layer from the Hub
    table        rows, and the files that keep them

One module for each trainer holds everything that is known of it: how it is imported, how a directory is opened by its
own class, how its own training loop is run without a loss, how it saves.
"""
