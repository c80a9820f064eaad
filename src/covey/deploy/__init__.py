"""From a trained ensemble to something smaller and faster."""

from covey.deploy.selecting import Selection, select_members
from covey.deploy.souping import Soup, soup

__all__ = ["Selection", "Soup", "select_members", "soup"]
