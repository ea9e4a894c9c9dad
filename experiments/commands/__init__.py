"""The commands of `experiments`, one module each; they may import every other folder."""
