"""MediaPipe's ImageClassifier in a process of its own: mediapipe_classify.py FILE.tflite... IMAGE...

Prints, for each .tflite file, a list with an object for each image: the categories' names in the order of
their indices, and their scores.
"""

import json
import sys

import mediapipe
from mediapipe.tasks.python import BaseOptions, vision


def classify(file: str, images: list[str]) -> list[dict]:
    options = vision.ImageClassifierOptions(BaseOptions(model_asset_path=file))
    found = []
    with vision.ImageClassifier.create_from_options(options) as classifier:
        for path in images:
            image = mediapipe.Image.create_from_file(path)
            categories = classifier.classify(image).classifications[0].categories
            categories = sorted(categories, key=lambda category: category.index)
            found.append(
                {
                    "indices": [category.index for category in categories],
                    "names": [category.category_name for category in categories],
                    "scores": [category.score for category in categories],
                }
            )
    return found


if __name__ == "__main__":
    files = [name for name in sys.argv[1:] if name.endswith(".tflite")]
    images = sys.argv[1 + len(files) :]
    print(json.dumps({file: classify(file, images) for file in files}))
