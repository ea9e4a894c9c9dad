"""`experiments bench`: what a forwarded request costs, beside other proxies; and what all measurements share."""
