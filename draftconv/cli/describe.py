"""What `inspect` found out, and what a conversion is for, in JSON."""

from __future__ import annotations

from draftconv.api.inspect import Inspection
from draftconv.api.other_drafter import OtherDrafter
from draftconv.conversion.plan import Conversion
from draftconv.drafter.describe import facts_json
from draftconv.engines import LoadVerdict
from draftconv.engines.problems import why
from draftconv.layouts.drafter_reader import readings_json


def inspection_json(inspection: Inspection) -> dict[str, object]:
    """Everything `inspect` knows, as one stable document."""
    drafter = inspection.drafter
    checkpoint = drafter.checkpoint
    return {
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "files": [{"name": f.name, "size": f.size, "unused": f.unused} for f in checkpoint.files],
        "layout": {
            "id": drafter.detection.layout,
            "confidence": drafter.detection.confidence,
            "reasons": list(drafter.detection.reasons),
        },
        "facts": facts_json(drafter.facts),
        "reasons": dict(drafter.reasons),
        **readings_json(drafter),
        "tensors": {
            name: {"file_name": drafter.names[name], "dtype": ref.dtype, "shape": list(ref.shape)}
            for name, ref in drafter.tensors.items()
        },
        "companions": sorted(drafter.qparams),
        "dropped": dict(drafter.dropped),
        "target": {
            "name": inspection.target.name,
            "layers": inspection.target.layers,
            "family": inspection.target.family,
        }
        if inspection.target
        else None,
        "problems": [
            {
                "code": p.code,
                "severity": p.severity,
                "level": p.kind.level,
                "title": p.kind.title,
                "detail": p.detail,
                "why": why(p.code),
                "cure": p.kind.cure,
                "repair": p.kind.repair,
            }
            for p in inspection.problems
        ],
        "weights": {"format": inspection.weights.format, "findings": list(inspection.weights.findings)}
        if inspection.weights
        else None,
        "not_verified": inspection.not_verified,
        "not_checked": list(inspection.not_made),
        "engines": [verdict_json(verdict) for verdict in inspection.verdicts],
    }


def other_drafter_json(other: OtherDrafter) -> dict[str, object]:
    """What is known of a drafter that is not EAGLE-3."""
    return {
        "name": other.name,
        "kind": other.kind.name,
        "what": other.kind.what,
        "why": other.kind.why,
        "config": dict(other.lines),
        "engines": [
            {"engine": name, "setting": served.setting, "source": served.source, "evidence": served.evidence}
            for name, served in other.served.items()
        ],
    }


def left_out_json(conversion: Conversion) -> list[dict[str, object]]:
    """The engines that an output is not for, where none was named."""
    return [{"engine": left.engine, "why": left.why} for left in conversion.left_out]


def verdict_json(verdict: LoadVerdict) -> dict[str, object]:
    broken = {line.rule.code for line in verdict.lines}
    return {
        "engine": verdict.spec.name,
        "version": verdict.spec.version,
        "hardware": verdict.spec.hardware,
        "status": verdict.status,
        "lines": [
            {
                "rule": line.rule.code,
                "effect": line.rule.effect,
                "says": line.rule.says,
                "detail": line.detail,
                "source": line.rule.source,
                "evidence": line.rule.evidence,
            }
            for line in verdict.lines
        ],
        "rules_kept": [rule.code for rule in verdict.rules if rule.code not in broken],
    }
