"""The names of the routers as a type, by which editors complete them and type checkers find a wrong one."""

RouterName = str
"""A key of `ROUTERS`. An installed package has a stub that lists them, made of the modules here; in a clone it is any string."""
