"""Exports for servers and phones: SavedModel, LiteRT and ONNX, each run and compared before it is kept.

`saved_model`, `litert` and `onnx` write an artifact and a JSON report beside it; `open_artifact`
runs each kind again. Importing this package imports neither Keras nor TensorFlow, so a machine that
only runs exported files needs neither.

The functions `litert`, `onnx` and `saved_model` stand here under the names of the modules they come from.
"""

from keras_vit.export.artifact import Artifact, open_artifact
from keras_vit.export.litert import litert
from keras_vit.export.onnx import onnx
from keras_vit.export.process import in_tensorflow_process
from keras_vit.export.report import Comparison, Latency, Report
from keras_vit.export.saved_model import saved_model
from keras_vit.export.verify import ExportError

FORMATS = {"tf_saved_model": saved_model, "litert": litert, "onnx": onnx}

__all__ = [
    "FORMATS",
    "Artifact",
    "Comparison",
    "ExportError",
    "Latency",
    "Report",
    "in_tensorflow_process",
    "litert",
    "onnx",
    "open_artifact",
    "saved_model",
]
