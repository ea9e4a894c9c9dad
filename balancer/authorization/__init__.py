"""Forward authorisation: another cluster decides whether the requests of a route are forwarded."""
