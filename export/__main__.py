"""`python -m keras_vit.export model.keras out.tflite`: what `in_tensorflow_process` starts."""

import argparse
import sys

import numpy as np

from keras_vit.export import FORMATS
from keras_vit.export.graph import INPUTS, OUTPUTS
from keras_vit.export.quantize import MODES


def main() -> int:
    """Exports a .keras file; prints the report, or one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m keras_vit.export", description=__doc__)
    parser.add_argument("model", help="a .keras file of this package")
    parser.add_argument("path", help="the .tflite or .onnx file or SavedModel folder to write")
    parser.add_argument("--format", choices=tuple(FORMATS), default="litert")
    parser.add_argument("--quantize", choices=MODES, default="float32")
    parser.add_argument("--batch", type=int, default=1, help="images in one run, 0 for resizable")
    parser.add_argument("--input", choices=INPUTS, default="float32")
    parser.add_argument("--output", choices=OUTPUTS, default="probabilities")
    parser.add_argument("--images", help=".npy file with images to calibrate and compare on")
    parser.add_argument("--labels", help=".npy file with their class indices, for the accuracy")
    parser.add_argument("--float-layers", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--strict", action="store_true", help="all integers, or it fails")
    parser.add_argument("--calibration", default="minmax", help="minmax or percentile:P")
    parser.add_argument("--max-drop", type=float, help="accuracy budget, 0.01 for a point")
    parser.add_argument("--force", action="store_true", help="replace an earlier export")
    parser.add_argument("--allow", action="store_true", help="keep it if the comparison fails")
    args = parser.parse_args()
    try:
        import keras

        model = keras.saving.load_model(args.model, compile=False)
        shared = {
            "images": np.load(args.images, allow_pickle=False) if args.images else None,
            "labels": np.load(args.labels, allow_pickle=False) if args.labels else None,
            "force": args.force,
            "allow": args.allow,
        }
        if args.format != "litert":
            report = FORMATS[args.format](model, args.path, **shared)
        else:
            report = FORMATS["litert"](
                model,
                args.path,
                quantize=None if args.quantize == "float32" else args.quantize,
                batch=args.batch or None,
                input=args.input,
                output=args.output,
                float_layers=args.float_layers,
                strict=args.strict,
                calibration=args.calibration,
                max_drop=args.max_drop,
                **shared,
            )
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 1
    print(report.to_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
