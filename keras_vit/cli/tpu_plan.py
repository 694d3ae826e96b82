"""`tpu-plan`: whether a training run fits a TPU slice, how long it would take and what feeds it."""

import dataclasses
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Set, bytes_text, log, size_option, table


def tpu_plan(
    model: Annotated[str, typer.Argument(help="A name of a network.", show_default=False)],
    topology: Annotated[
        str, typer.Option("--topology", help="v3-8 to v3-128, v4-8, v5e-8, v5p-8, v6e-8, ...")
    ] = "v3-8",
    recipe: Annotated[
        str, typer.Option("--recipe", help="What is to be trained, and how long.")
    ] = "paper/imagenet21k",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Images per update; the recipe's by default."),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", help="Pixels, 384 or HEIGHTxWIDTH; the recipe's by default."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="An option of the recipe: epochs=30, level=medium1.", metavar="KEY=VALUE"
        ),
    ] = None,
    changes: Set = None,
) -> Answer:
    """Plan a training run on a TPU, without one: memory, time, core-days, input rate.

    The TPU compiler compiles the step that training runs, for two or three sizes of micro-batch: 20 to
    120 seconds each on an idle machine, more for networks of convolutions. Exit code 1 when the run does
    not fit. Needs pip install 'keras-vit-zoo[tpu-plan]'.
    """
    from keras_vit.cli.progress import make_bar
    from keras_vit.studies import process

    process.check_installed()
    with make_bar() as bar:
        line = bar.add_task("starting", total=None)

        def compiling(what: str) -> None:
            text = f"compiling {what} (20 to 120 seconds)"
            bar.update(line, description=text)
            if bar.disable:
                log(text)

        plan = process.tpu_plan(
            model,
            topology,
            recipe=recipe,
            batch_size=batch,
            image_size=size_option(image_size),
            options=tuple(options or ()),
            changes=tuple(changes or ()),
            progress=compiling,
        )
    return Answer(dataclasses.asdict(plan), view(plan), 0 if plan.fits else 1)


def view(plan: Any) -> tuple[Any, ...]:
    """A plan for people."""
    height, width = plan.image_size
    unknown = "no sane figure"
    rows = [
        ("run", f"{plan.model}, {plan.recipe}, {height}x{width} pixels, {plan.dtype}"),
        ("slice", f"{plan.topology}: {plan.cores} cores, {plan.hosts} hosts"),
        ("fits", "yes" if plan.fits else "no"),
        (
            "memory per core",
            f"{bytes_text(plan.memory_bytes)} of {bytes_text(plan.hbm_bytes)}, "
            f"{bytes_text(plan.state_bytes)} of it weights, optimizer and images",
        ),
        (
            "batch",
            f"{plan.batch_size:,} = {plan.cores} cores x {plan.accumulation_steps} parts x "
            f"{plan.micro_batch} images",
        ),
        (
            "largest per core",
            f"{plan.largest_micro_batch} images at once"
            if plan.largest_micro_batch is not None
            else f"at least {plan.micro_batch} images at once",
        ),
        (
            "step",
            unknown
            if plan.step_seconds is None
            else f"{plan.step_seconds:.3f} s, {plan.steps:,} of them",
        ),
        (
            "images per second and core",
            unknown
            if plan.images_per_second_per_core is None
            else f"{plan.images_per_second_per_core:,.0f}",
        ),
        (
            "core-days",
            unknown
            if plan.core_days is None
            else f"{plan.core_days:,.1f} ({plan.core_days / plan.cores:,.2f} days)",
        ),
    ]
    if plan.published_core_days is not None:
        rows.append(("core-days in the paper", f"{plan.published_core_days:,}"))
    if plan.host_images_per_second is not None:
        rows.append(
            (
                "each host delivers",
                f"{plan.host_images_per_second:,.0f} images per second: {plan.host_cpu_cores} CPU cores "
                f"decoding JPEGs of 500x375 pixels",
            )
        )
    return (table(("what", "plan"), rows, 2), "", *plan.notes)
