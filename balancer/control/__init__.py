"""Control plane: reloads, named clusters, and the admin socket with its pages."""
