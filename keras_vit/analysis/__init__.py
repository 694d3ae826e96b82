"""Seeing inside: filters, positions, attention, as arrays, as figures and as one report.

seen = analysis.look(model, images)                 # arrays, a few images in memory at a time
found = analysis.inspect(model, ["cat.jpg"])        # all of it
analysis.write(found, "inspection")                 # report, figures, arrays
"""

from keras_vit.analysis.attention import (
    Seen,
    attention_distance,
    attention_maps,
    attention_rollout,
    look,
)
from keras_vit.analysis.backbone import find_backbone, pixels_per_token
from keras_vit.analysis.callback import InspectionCallback
from keras_vit.analysis.inspection import Inspection, inspect, write
from keras_vit.analysis.measures import feature_colours
from keras_vit.analysis.pictures import as_pixels, overlay, prepare
from keras_vit.analysis.weights import (
    Filters,
    class_token_similarity,
    embedding_filters,
    position_similarity,
)

__all__ = [
    "Filters",
    "Inspection",
    "InspectionCallback",
    "Seen",
    "as_pixels",
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "class_token_similarity",
    "embedding_filters",
    "feature_colours",
    "find_backbone",
    "inspect",
    "look",
    "overlay",
    "pixels_per_token",
    "position_similarity",
    "prepare",
    "write",
]
