"""What `keras_vit.zoo.fetch` is made of: addresses, connections, downloads, locks, hashes."""
