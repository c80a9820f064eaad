"""What the functions that a network calls say about sizes: one short rule each, looked up in a table.

A rule takes the recorder, the function's result and its own arguments, writes down what it learns, and returns the
sizes of the result. A function without a rule here is followed through the operators that it runs (`operators`).

To teach narrowing another function, write such a rule and add it to `RULES` in `following`.
"""

from covey.surgery.functions.following import Following

__all__ = ["Following"]
