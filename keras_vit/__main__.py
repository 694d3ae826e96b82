"""`python -m keras_vit` is the command `keras-vit`."""

from keras_vit.cli import main

main()
