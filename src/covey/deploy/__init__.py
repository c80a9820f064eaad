"""From a trained ensemble to something smaller and faster: fewer members, one fused module, a file without covey."""

from covey.deploy.distilling import distill
from covey.deploy.fusing import fuse
from covey.deploy.selecting import Selection, select_members
from covey.deploy.souping import Soup, soup

__all__ = ["Selection", "Soup", "distill", "fuse", "select_members", "soup"]
