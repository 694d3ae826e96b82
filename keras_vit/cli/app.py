"""The commands by name, each with an example in its help."""

import inspect

import typer

from keras_vit.cli.catalogue import info, list_models
from keras_vit.cli.common import command
from keras_vit.cli.convert import convert, export
from keras_vit.cli.cost import cost
from keras_vit.cli.dedup import dedup
from keras_vit.cli.demo import demo
from keras_vit.cli.doctor import doctor
from keras_vit.cli.evaluate import evaluate
from keras_vit.cli.fetch import fetch, lock
from keras_vit.cli.finetune import finetune
from keras_vit.cli.inspect import inspect as inspect_model
from keras_vit.cli.predict import predict
from keras_vit.cli.probe import probe
from keras_vit.cli.reproduce import reproduce
from keras_vit.cli.results import results
from keras_vit.cli.smoke import with_smoke
from keras_vit.cli.speed import speed
from keras_vit.cli.study import study
from keras_vit.cli.tpu_plan import tpu_plan
from keras_vit.cli.train import train
from keras_vit.cli.transfer import transfer
from keras_vit.cli.verify import bench, verify
from keras_vit.cli.vtab import vtab

COMMANDS = {
    "list": (list_models, 'keras-vit list "ViT-B*" --pretrained'),
    "info": (info, "keras-vit info ViT-L/16"),
    "fetch": (fetch, "keras-vit fetch ViT-B/16 ViT-L/16 --dry-run"),
    "lock": (lock, "keras-vit lock ViT-B/16 --output keras-vit.lock"),
    "predict": (predict, "keras-vit predict ViT-B/16 cat.jpg dog.jpg --top 3"),
    "finetune": (
        finetune,
        "keras-vit finetune ViT-B/16 --data folder:flowers --image-size 384 --out runs/flowers",
    ),
    "evaluate": (
        evaluate,
        "keras-vit evaluate runs/flowers/model.keras --data folder:flowers_test",
    ),
    "probe": (
        with_smoke(probe),
        "keras-vit probe ViT-B/16 --data folder:flowers --test folder:flowers_test --shots 5,10",
    ),
    "reproduce": (
        with_smoke(reproduce),
        "keras-vit reproduce ViT-B/16@augreg_in21k_ft_in1k_384 --data tfds:imagenet2012:validation",
    ),
    "results": (results, "keras-vit results results.jsonl --table 5"),
    "inspect": (
        with_smoke(inspect_model),
        "keras-vit inspect ViT-B/16 cat.jpg dog.jpg --data folder:pets --out inspection",
    ),
    "convert": (convert, "keras-vit convert runs/flowers/model.keras flowers.npz"),
    "export": (
        export,
        "keras-vit export runs/flowers/model.keras -o flowers.tflite --quantize dynamic_int8",
    ),
    "verify": (
        verify,
        "keras-vit verify flowers.tflite --against runs/flowers/model.keras --data folder:flowers_test",
    ),
    "bench": (bench, "keras-vit bench flowers.tflite flowers_int8.tflite --threads 1,2"),
    "doctor": (doctor, "keras-vit doctor"),
    "train": (train, "keras-vit train fashion_mnist/ten --out runs/ten"),
    "vtab": (vtab, "keras-vit vtab ViT-L/16@imagenet21k --data-dir ~/tfds --out runs/vtab"),
    "tpu-plan": (
        tpu_plan,
        "keras-vit tpu-plan ViT-L/16 --topology v3-8 --recipe paper/imagenet21k",
    ),
    "cost": (cost, "keras-vit cost ViT-B/16 R50+ViT-B/16 BiT-R50x1 --recipe paper/jft --epochs 7"),
    "study": (study, "keras-vit study data-size/few-shot --out runs/few-shot"),
    "speed": (
        speed,
        "keras-vit speed ViT-B/32 BiT-R50x1 --image-size 64,128,224 --batch 1,8 --out runs/speed",
    ),
    "dedup": (
        dedup,
        "keras-vit dedup folder:train folder:test -o duplicates.csv --write-kept train_kept",
    ),
    "transfer": (
        transfer,
        "keras-vit transfer ViT-B/16@imagenet21k --data pets --out runs/pets",
    ),
    "demo": (demo, "keras-vit demo --out demo"),
}

app = typer.Typer(
    name="keras-vit",
    help="Vision Transformers in Keras 3: load, fine-tune, evaluate, export.",
    epilog="Example: keras-vit demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def reflowed(text: str) -> str:
    """A docstring whose paragraphs are one line each, for the terminal to wrap."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _name, (_function, _example) in COMMANDS.items():
    _help = reflowed(_function.__doc__ or "")
    app.command(_name, help=_help, epilog=f"Example: {_example}")(command(_function))


def _print_version(wanted: bool) -> None:
    if wanted:
        from keras_vit import __version__

        typer.echo(f"keras-vit {__version__}")
        raise typer.Exit()


@app.callback(help="Vision Transformers in Keras 3: load, fine-tune, evaluate, export.")
def options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Options before a command."""
