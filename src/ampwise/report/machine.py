"""A recording for a machine: the document ``--json`` prints."""

from typing import Any

from ampwise.records.comparison import VariantSummary
from ampwise.records.files import to_plain
from ampwise.records.recording import Recording
from ampwise.report.words import headline


def comparison_json(recording: Recording) -> dict[str, Any]:
    """The comparison in JSON's own types; floats that JSON lacks are tagged as in a record file."""
    comparison = recording.comparison
    return to_plain(
        {
            "created": recording.created,
            "command": recording.command,
            "outcome": headline(recording).text,
            "num_steps": comparison.num_steps if comparison else None,
            "num_repeats": comparison.num_repeats if comparison else None,
            "project_steps": comparison.project_steps if comparison else None,
            "evaluates": comparison.evaluates if comparison else False,
            "variants": [_variant(summary) for summary in comparison.variants] if comparison else [],
            "notes": recording.notes,
            "environment": recording.environment,
        }
    )


def _variant(summary: VariantSummary) -> dict[str, Any]:
    return {
        "variant": summary.variant,
        "precision": summary.precision,
        "step_ms_median": summary.step_ms_median,
        "step_ms_iqr": summary.step_ms_iqr,
        "final_loss": summary.final_loss,
        "verdict": summary.verdict,
        "peak_tensor_bytes": summary.peak_tensor_bytes,
        "skipped": summary.num_skipped,
        "ratio_time": summary.ratio_time,
        "ratio_memory": summary.ratio_memory,
        "error": summary.error,
        "samples_per_second": summary.samples_per_second,
        "projected_hours": summary.projected_hours,
        "peak_allocated_bytes": summary.peak_allocated_bytes,
        "final_scale": summary.final_scale,
        "verdict_reason": summary.verdict_reason,
        "output_error": summary.outputs.relative_error if summary.outputs else None,
        "argmax_moved": summary.outputs.flips if summary.outputs else None,
    }
