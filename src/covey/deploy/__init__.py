"""From a trained ensemble to something smaller and faster: fewer members, one fused module, a file without covey."""

from covey.deploy.fusing import fuse
from covey.deploy.selecting import Selection, select_members
from covey.deploy.souping import Soup, soup

__all__ = ["Selection", "Soup", "fuse", "select_members", "soup"]
