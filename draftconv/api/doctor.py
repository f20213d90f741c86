"""Why a running server accepts less than it should.

The server is asked the prompts of a trace. The drafter is replayed as it was trained, and under every mis-reading that
its engine is known to have; what the server's own counts are likeliest of is named, if it explains them.
"""

from __future__ import annotations

from draftconv.conversion.provenance import recorded_engines
from draftconv.live.doctor.diagnosis import Diagnosis
from draftconv.live.doctor.examining import examine
from draftconv.live.doctor.options import DoctorOptions
from draftconv.options import Place, takes

__all__ = ["Diagnosis", "DoctorOptions", "doctor"]


@takes(DoctorOptions)
def doctor(drafter: Place, options: DoctorOptions) -> Diagnosis:
    """Say which known mis-reading reproduces what a server counts.

    Args:
        drafter: the directory or Hub id that it should serve.

    Raises:
        UsageError: the trace is of another target or of sampled text, or lacks what a replay needs.
        BadCheckpoint, Refused, Undecided: a drafter, the trace or the target cannot be read or computed.
        EngineError: the server is not there, or does not answer as this engine does.
        Void: counts that are not to be trusted: somebody else used the server, or it was started again.
    """
    return examine(drafter, options, recorded_engines)
