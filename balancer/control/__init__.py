"""Control plane: reloads, named pools, and the admin socket with its pages."""
