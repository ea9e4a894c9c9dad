"""Policies from a user's file or module: `my_policy.py:Tempered`, `my_package.my_module:Tempered`."""
