"""The curves over a run's steps, each with what its reader should know."""

from ampwise.records.recording import Recording
from ampwise.report import charts
from ampwise.report.page import Chart
from ampwise.report.switch_marks import has_moves


def loss_chart(recording: Recording) -> Chart:
    """The losses of every run."""
    crosses, triangles = charts.has_marks(recording)
    lines = {
        "One line a run; repeats are lighter.": True,
        "A cross marks where a loss stopped being finite; the line is broken until it is again.": crosses,
        "A triangle marks a step that was skipped because its gradients were not finite.": triangles,
        "A diamond marks where modules moved to a safer format, a square where they came back; it is shaded while any "
        "is up.": has_moves(recording),
    }
    caption = " ".join(text for text, is_shown in lines.items() if is_shown)
    return Chart(name="loss", title="Loss", caption=caption, figure=charts.loss_curves(recording))


def scale_chart(recording: Recording) -> Chart:
    """The loss scale of every run that had one."""
    return Chart(
        name="scale",
        title="Loss scale",
        caption="What the loss was multiplied by. A triangle marks a step that was skipped at that scale.",
        figure=charts.scale_curves(recording),
    )


def step_chart(recording: Recording) -> Chart:
    """The time of every step of every run."""
    return Chart(
        name="steps",
        title="Step time",
        caption="Steps that an instrument slowed are left out.",
        figure=charts.step_curves(recording),
    )
